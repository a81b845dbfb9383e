import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.WebSocket;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * Prices over WebSocket with the JDK alone (17 or later):
 *
 * <pre>java Quotes.java http://127.0.0.1:8080 3 1 2</pre>
 *
 * shows three quotes of the instruments 1 and 2; a count of 0 means for ever. The token, if one is needed, comes from
 * the environment variable TOKEN. A real program reads the messages with a JSON library and BigDecimal.
 */
public final class Quotes implements WebSocket.Listener {
    private static final Pattern TYPE = Pattern.compile("^\\{\"type\":\"(\\w+)\"");
    private static final Pattern EVENT = Pattern.compile("\"topic\":\"(quote:-?\\d+)\".*?\"price\":(-?[\\d.eE+-]+)");
    /** Two heartbeats of the gateway's default and a little. */
    private static final Duration SILENCE = Duration.ofSeconds(42);

    private final String subscribe;
    private final AtomicLong left;
    private final CountDownLatch ended = new CountDownLatch(1);
    private final StringBuilder text = new StringBuilder();
    private volatile long heardAt = System.nanoTime();
    private volatile boolean wasLive;
    private volatile boolean refused;

    private Quotes(String subscribe, AtomicLong left) {
        this.subscribe = subscribe;
        this.left = left;
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 3) {
            System.err.println("usage: java Quotes.java GATEWAY COUNT ID...");
            System.exit(64);
        }
        URI uri = URI.create(args[0].replaceFirst("^http", "ws") + "/market/ws");
        AtomicLong left = new AtomicLong("0".equals(args[1]) ? Long.MAX_VALUE : Long.parseLong(args[1]));
        String topics = Arrays.stream(args).skip(2).map(id -> "\"quote:" + Long.parseLong(id) + "\"")
                .collect(Collectors.joining(","));
        String subscribe = "{\"type\":\"subscribe\",\"request_id\":\"1\",\"topics\":[" + topics + "]}";
        HttpClient http = HttpClient.newHttpClient();

        for (int failures = 0; left.get() > 0; failures++) {
            Quotes session = new Quotes(subscribe, left);
            try {
                WebSocket socket = http.newWebSocketBuilder().connectTimeout(Duration.ofSeconds(10))
                        .buildAsync(uri, session).join();
                session.awaitEnd(socket);
            } catch (java.util.concurrent.CompletionException e) {
                System.err.println("no connection: " + e.getCause().getMessage());
            }
            if (session.refused) {
                System.err.println("the token is refused, or one is needed");
                System.exit(1);
            }
            if (session.wasLive) {
                failures = 0;
            }
            if (left.get() > 0) {
                // Full jitter, so that clients that were cut together don't return together.
                Thread.sleep(ThreadLocalRandom.current().nextLong(Math.min(30_000, 1_000L << Math.min(failures, 5))));
            }
        }
    }

    /** A dead network closes nothing; silence is the only sign. */
    private void awaitEnd(WebSocket socket) throws InterruptedException {
        while (!ended.await(1, java.util.concurrent.TimeUnit.SECONDS)) {
            if (System.nanoTime() - heardAt > SILENCE.toNanos()) {
                socket.abort();
                return;
            }
        }
        socket.abort();
    }

    @Override
    public void onOpen(WebSocket socket) {
        String token = System.getenv("TOKEN");
        socket.sendText(token == null ? subscribe : "{\"type\":\"auth\",\"token\":\"" + token + "\"}", true);
        socket.request(1);
    }

    @Override
    public CompletionStage<?> onText(WebSocket socket, CharSequence part, boolean last) {
        heardAt = System.nanoTime();
        text.append(part);
        if (last) {
            String message = text.toString();
            text.setLength(0);
            handle(socket, message);
        }
        socket.request(1);
        return null;
    }

    private void handle(WebSocket socket, String message) {
        Matcher type = TYPE.matcher(message);
        if (!type.find()) {
            return;
        }
        switch (type.group(1)) {
            case "auth" -> socket.sendText(subscribe, true);
            case "ping" -> socket.sendText("{\"type\":\"pong\"}", true);
            case "subscribe" -> wasLive = true;
            case "error" -> {
                refused |= message.contains("\"code\":\"UNAUTHORIZED\"");
                System.err.println(message);
                if (refused) {
                    ended.countDown();
                }
            }
            case "event" -> {
                Matcher event = EVENT.matcher(message);
                if (event.find() && left.getAndDecrement() > 0) {
                    System.out.println(event.group(1) + " " + event.group(2));
                }
                if (left.get() <= 0) {
                    ended.countDown();
                }
            }
            default -> {
                // The protocol grows; what isn't known is ignored.
            }
        }
    }

    @Override
    public CompletionStage<?> onClose(WebSocket socket, int code, String reason) {
        System.err.println("closed: " + code + " " + reason);
        refused |= code == 1008;
        ended.countDown();
        return null;
    }

    @Override
    public void onError(WebSocket socket, Throwable error) {
        System.err.println("lost: " + error.getMessage());
        ended.countDown();
    }
}
