# The gateway's image: a distroless base, the binary, nothing else.
#
#   docker build -t tickbridge --build-arg VERSION=0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .
#
# Runs as a user without rights on a read-only root file system, and writes nothing. Builds are
# repeatable: pinned toolchain, locked dependencies, no path or time of the build in the binary.

# The suite is that of the runtime below: the binary needs the same or a newer libc than it was linked with.
ARG RUST=rust:1.95-slim-trixie
ARG RUNTIME=gcr.io/distroless/cc-debian13:nonroot

FROM ${RUST} AS build
WORKDIR /src
# Function names stay for backtraces; line tables would make the binary three times as large.
ENV CARGO_PROFILE_RELEASE_DEBUG=false \
    CARGO_PROFILE_RELEASE_STRIP=debuginfo \
    CARGO_INCREMENTAL=0 \
    SOURCE_DATE_EPOCH=0
# As Cargo.toml says, unless who builds often while developing would rather wait less than have a fast binary:
#   --build-arg CARGO_PROFILE_RELEASE_LTO=off --build-arg CARGO_PROFILE_RELEASE_OPT_LEVEL=0
ARG CARGO_PROFILE_RELEASE_LTO
ARG CARGO_PROFILE_RELEASE_OPT_LEVEL

# Dependencies first, by themselves: this layer changes with Cargo.lock and not with every line of code.
# Cargo wants each target that the manifest names to exist, even those that are not built.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src tests/it \
    && echo 'fn main() {}' | tee src/main.rs >tests/it/main.rs \
    && touch src/lib.rs \
    && cargo build --locked --release \
    && rm -r src

COPY . .
# Cargo compares times, and a checkout may be older than the layer above.
RUN touch src/main.rs src/lib.rs \
    && cargo build --locked --release

# A label that disagrees with the binary must not be published.
ARG VERSION=
RUN if [ -n "${VERSION}" ]; then \
        test "$(target/release/tickbridge --version)" = "tickbridge ${VERSION#v}"; \
    fi

FROM ${RUNTIME}
COPY --from=build --chmod=0555 /src/target/release/tickbridge /usr/local/bin/tickbridge
USER 65532:65532
EXPOSE 8080 8081
# SIGTERM drains: sessions are told to reconnect elsewhere, and the process ends within drain.deadline.
STOPSIGNAL SIGTERM
# Asks whether the process lives, not whether it is ready: an orchestrator that replaces unhealthy containers
# would otherwise replace all replicas while Redis is away, and none of them would be better.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/tickbridge", "health", "--url", "http://127.0.0.1:8081/livez"]
ENTRYPOINT ["/usr/local/bin/tickbridge"]
CMD ["serve"]

ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="tickbridge" \
      org.opencontainers.image.description="Carries market prices from Redis to browsers over WebSocket and SSE" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
