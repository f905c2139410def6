# One image for simulations, the server and the sites; no key, no data and no experiment is in it. From the root of a clone:
#   docker build -t sordino .
#   docker run --rm -v "$PWD":/work sordino run
FROM python:3.11-slim

# torch for processors: without this line its GPU libraries come along, which are several gigabytes
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

# The clone is only looked at while it is installed, so nothing that lies in it becomes a part of the image.
RUN --mount=type=bind,target=/source,rw pip install --no-cache-dir --constraint /source/constraints.txt '/source[sites,data]'

RUN useradd --create-home --uid 10001 sordino \
    && install -d -o sordino -g sordino /work /trial/server /trial/hospital-a /trial/hospital-b /trial/hospital-c
USER sordino
WORKDIR /work
ENTRYPOINT ["sordino"]
