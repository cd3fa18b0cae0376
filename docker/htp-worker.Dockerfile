# The HTP library for qnnmem on another machine or outside the container; see
# docs/how-to/htp-anywhere.md.
#
#   docker build --platform linux/amd64 -f docker/htp-worker.Dockerfile -t qnnmem-worker .
#   export QNNMEM_HTP_WORKER="docker run -i --rm --platform linux/amd64 qnnmem-worker"
#
# The container mounts no folder and needs no network: models arrive through its standard input.
FROM python:3.11-slim

# The library is linked against libatomic1, and slim images lack it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libatomic1 \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir --constraint /src/constraints.txt "/src[htp]" \
    && rm -rf /src \
    && useradd --create-home worker \
    && install -d -o worker -g worker /home/worker/.cache

USER worker
WORKDIR /home/worker
# To keep received files after the container ends: -v qnnmem-worker:/home/worker/.cache
VOLUME /home/worker/.cache
CMD ["qnnmem", "htp-worker"]
