//! Peers that do the same job, and the proxies in front of the gateway, each configured for this work.

use super::{Running, accepts, free_addr, free_port};
use anyhow::Result;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// nginx with nchan: 1 GiB for channels, nothing stored, a worker per core.
///
/// # Errors
/// When it doesn't come up.
pub fn nchan(dir: &Path) -> Result<(Running, SocketAddr)> {
    let addr = free_addr()?;
    let body = format!(
        "
nchan_shared_memory_size 1G;
access_log off;
server {{
    listen {addr} backlog=4096 reuseport;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    tcp_nodelay on;
    location ~ ^/pub/(\\d+)$ {{
        nchan_publisher http;
        nchan_channel_id $1;
        nchan_store_messages off;
    }}
    location ~ ^/sub/([\\d,]+)$ {{
        nchan_subscriber websocket eventsource;
        nchan_channel_id $1;
        nchan_channel_id_split_delimiter ',';
        nchan_subscriber_first_message newest;
        nchan_websocket_ping_interval 0;
    }}
}}"
    );
    let modules = "load_module /usr/lib/nginx/modules/ngx_nchan_module.so;";
    let process = nginx("nchan", modules, &body, addr, dir)?;
    Ok((process, addr))
}

/// nginx as the internal balancer, least connections, buffering off.
///
/// # Errors
/// When it doesn't come up.
pub fn nginx_proxy(gateways: &[SocketAddr], dir: &Path) -> Result<(Running, SocketAddr)> {
    let addr = free_addr()?;
    // One loopback address has too few ports for 10,000 sessions and those of the run before.
    let sources: String =
        (0..8).map(|i| format!("    {}% 127.0.1.{};\n", if i < 7 { "12.5" } else { "*" }, i + 1)).collect();
    let sources = sources.replace("*%", "*");
    let servers: String = gateways.iter().map(|g| format!("    server {g};\n")).collect();
    let body = format!(
        "
access_log off;
split_clients $connection $source {{
{sources}}}
upstream gateway {{
    least_conn;
{servers}}}
server {{
    listen {addr} backlog=4096 reuseport;
    tcp_nodelay on;
    location / {{
        proxy_pass http://gateway;
        proxy_bind $source;
        proxy_http_version 1.1;
        proxy_set_header Host $host;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $http_connection;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_buffering off;
        proxy_read_timeout 120s;
        proxy_send_timeout 120s;
        proxy_buffer_size 4k;
    }}
}}"
    );
    let process = nginx("nginx", "", &body, addr, dir)?;
    Ok((process, addr))
}

fn nginx(role: &'static str, modules: &str, body: &str, addr: SocketAddr, dir: &Path) -> Result<Running> {
    let home = home(dir, role)?;
    let temp = |name: &str| format!("{name}_temp_path {}/{name};", home.display());
    let temps: Vec<_> = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(temp).into();
    let text = format!(
        "{modules}
daemon off;
user root;
worker_processes 2;
worker_rlimit_nofile {limit};
pid {home}/nginx.pid;
error_log stderr error;
events {{
    worker_connections {limit};
    multi_accept on;
}}
http {{
{temps}
{body}
}}
",
        limit = 20_000,
        home = home.display(),
        temps = temps.join("\n"),
    );
    let config = home.join("nginx.conf");
    std::fs::write(&config, text)?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&config).arg("-p").arg(&home).args(["-e", "stderr"]);
    let mut process = Running::start(role, &mut command, dir)?;
    process.wait_until(|| accepts(addr))?;
    Ok(process)
}

/// Caddy in front of nginx, without TLS, because the load generator has none.
///
/// # Errors
/// When it doesn't come up.
pub fn caddy_proxy(nginx: SocketAddr, dir: &Path) -> Result<(Running, SocketAddr)> {
    let home = home(dir, "caddy")?;
    let addr = free_addr()?;
    let text = format!(
        "{{\n    admin off\n    auto_https off\n    log {{\n        level ERROR\n    }}\n}}\n\
         http://{addr} {{\n    bind 127.0.0.1\n    reverse_proxy {nginx} {{\n        flush_interval -1\n    }}\n}}\n"
    )
    .replace(&format!("http://{addr}"), &format!("http://:{}", addr.port()));
    let config = home.join("Caddyfile");
    std::fs::write(&config, text)?;
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&config).env("HOME", &home);
    let mut process = Running::start("caddy", &mut command, dir)?;
    process.wait_until(|| accepts(addr))?;
    Ok((process, addr))
}

/// nats-server with a WebSocket listener. Gives the process, the WebSocket and the plain port.
///
/// # Errors
/// When it doesn't come up.
pub fn nats(dir: &Path) -> Result<(Running, SocketAddr, SocketAddr)> {
    let home = home(dir, "nats")?;
    let (plain, ws) = (free_addr()?, free_addr()?);
    let text = format!(
        "host: 127.0.0.1\nport: {}\nmax_connections: 100000\nwrite_deadline: \"10s\"\nping_interval: \"2m\"\n\
         websocket {{\n  host: 127.0.0.1\n  port: {}\n  no_tls: true\n  compression: false\n}}\n",
        plain.port(),
        ws.port()
    );
    let config = home.join("nats.conf");
    std::fs::write(&config, text)?;
    let mut process = Running::start("nats", Command::new("nats-server").arg("-c").arg(&config), dir)?;
    process.wait_until(|| accepts(plain) && accepts(ws))?;
    Ok((process, ws, plain))
}

fn home(dir: &Path, role: &str) -> Result<PathBuf> {
    let home = dir.join(format!("{role}-{}", free_port()?));
    std::fs::create_dir_all(&home)?;
    Ok(home)
}
