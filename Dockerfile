# Orchestry in a container; docs/docker.md says how to build and run it.
# EXTRAS: extras of pyproject.toml; PACKAGES: further packages. WEIGHTS=no leaves the embedded
# model's weights out; `--build-context weights=FOLDER` takes them from a folder instead of
# fetching them.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG EXTRAS=embedded
ARG PACKAGES=
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/orchestry \
    && /opt/orchestry/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]" ${PACKAGES}

FROM build AS fetch
ARG WEIGHTS=yes
ENV ORCHESTRY_WEIGHTS=/opt/weights
RUN mkdir /opt/weights \
    && if [ "${WEIGHTS}" = yes ]; then /opt/orchestry/bin/orchestry models get smollm2-135m; fi \
    && rm -f /opt/weights/*.lock

FROM scratch AS weights
COPY --from=fetch /opt/weights /

FROM ${BASE}
# xllamacpp, which serves the embedded model, needs libgomp1; slim images lack it.
RUN apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 1000 -g 1000 /orchestry/runs
COPY --from=build /opt/orchestry /opt/orchestry
COPY --from=weights --chown=1000:1000 / /opt/weights
# HOME is where caches go: the one writable folder that `--tmpfs /tmp` leaves, for any user.
ENV PATH=/opt/orchestry/bin:$PATH HOME=/tmp ORCHESTRY_WEIGHTS=/opt/weights PYTHONUNBUFFERED=1
WORKDIR /orchestry
VOLUME /orchestry/runs
USER 1000:1000
STOPSIGNAL SIGINT
ENTRYPOINT ["orchestry"]
CMD ["--help"]
