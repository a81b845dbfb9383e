# The servers' stand-ins: users, paths, entry points and commands as in the real images.
ARG BASE
FROM ${BASE} AS redis
RUN mkdir -p /data && chown 999:999 /data
WORKDIR /data
VOLUME /data
EXPOSE 6379
CMD ["redis-server"]

FROM ${BASE} AS nginx
RUN ln -sf /dev/stdout /var/log/nginx/access.log && ln -sf /dev/stderr /var/log/nginx/error.log
EXPOSE 80
STOPSIGNAL SIGQUIT
CMD ["nginx", "-g", "daemon off;"]

FROM ${BASE} AS caddy
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
RUN mkdir -p /config/caddy /data/caddy /srv
EXPOSE 80 443 443/udp 2019
WORKDIR /srv
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]

FROM ${BASE} AS prometheus
RUN mkdir -p /prometheus && chown 65534:65534 /prometheus
USER nobody
WORKDIR /prometheus
VOLUME /prometheus
EXPOSE 9090
ENTRYPOINT ["/usr/bin/prometheus"]
