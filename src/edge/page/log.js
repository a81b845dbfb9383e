/** What happened, in order, read out politely by screen readers. It follows its end unless scrolled back. */

const MOST = 100;

export function createLog(pane) {
  const list = pane.firstElementChild;
  return {
    /** `kind` is "good", "bad", "odd" or nothing. */
    add(text, kind = "") {
      const entry = document.createElement("li");
      const time = document.createElement("time");
      const now = new Date();
      time.dateTime = now.toISOString();
      time.textContent = now.toLocaleTimeString("en-GB");
      const words = document.createElement("span");
      words.className = kind;
      words.textContent = text;
      entry.append(time, words);
      const following = pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 4;
      list.append(entry);
      while (list.children.length > MOST) list.firstChild.remove();
      if (following) pane.scrollTop = pane.scrollHeight;
    },
  };
}
