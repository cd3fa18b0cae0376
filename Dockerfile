# qnnmem with the real HTP library.
#
#   docker build --platform linux/amd64 -t qnnmem .
#   docker run --rm --platform linux/amd64 -v "$PWD:/models" qnnmem plan model.onnx
#
# The HTP library exists only for Linux on x86-64. With --platform linux/amd64, other machines emulate
# it, which is slow. --build-arg EXTRAS=png omits the library; then use any platform.
FROM python:3.11-slim

ARG EXTRAS=htp
COPY . /src
# The HTP library is linked against libatomic1, and slim images lack it. The compiler is there only
# to build the search once; the result stays in the user's cache.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libatomic1 gcc libc6-dev \
    && pip install --no-cache-dir --constraint /src/constraints.txt "/src[${EXTRAS}]" \
    && useradd --create-home user \
    && su user -c 'python -c "from qnnmem.planner.compiled_packing import is_compiled; is_compiled()"' \
    && apt-get purge -y --auto-remove gcc libc6-dev \
    && rm -rf /src /var/lib/apt/lists/*

# Not root, so that files in a mounted folder do not belong to root.
USER user
WORKDIR /models
ENTRYPOINT ["qnnmem"]
CMD ["--help"]
