# An image for `wflow study`, from a wheel of this checkout:
#
#     docker build --tag wflow .
#     docker run --rm --volume wflow-results:/home/wflow/results wflow study ou_heads --heads 64
#
# Studies of networks need `--build-arg EXTRAS=studies,nets,metrics`, which adds torch.
FROM python:3.13-slim AS build
COPY . /source
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist /source

FROM python:3.13-slim
ARG EXTRAS=studies
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(ls /dist/*.whl)[$EXTRAS]" \
    && useradd --create-home wflow \
    && install --directory --owner wflow /home/wflow/results
USER wflow
WORKDIR /home/wflow
VOLUME /home/wflow/results
# The kernels that a first run compiles stay with the results.
ENV NUMBA_CACHE_DIR=/home/wflow/results/.cache
ENTRYPOINT ["wflow"]
CMD ["study", "list"]
