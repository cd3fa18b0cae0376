# qnnmem with the real HTP library and the exact search, in an image of its own.
#
#   docker build --platform linux/amd64 -t qnnmem .
#   docker run --rm --platform linux/amd64 -v "$PWD:/models" qnnmem plan model.onnx
#
# The HTP library exists for Linux on x86-64 alone: --platform linux/amd64 has other machines emulate
# one, which is slow. --build-arg EXTRAS=search leaves the library out; then any platform will do.
FROM python:3.11-slim

ARG EXTRAS=search,htp
# The HTP library is linked against it, and slim images lack it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libatomic1 \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir --constraint /src/constraints.txt "/src[${EXTRAS}]" \
    && rm -rf /src \
    && useradd --create-home user

# Not root: what the program writes into a mounted folder should not be root's.
USER user
# Compiles the inner loops of the exact search once, into the image.
RUN python -m qnnmem.plan.warm
WORKDIR /models
ENTRYPOINT ["qnnmem"]
CMD ["--help"]
