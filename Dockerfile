# The image of docker-compose.yml: pgqueue and nothing else; add your own code on top.
FROM python:3.13-slim
WORKDIR /app
COPY . /src
RUN pip install --no-cache-dir '/src[metrics,web]' && useradd --system pgqueue
USER pgqueue
ENTRYPOINT ["pgqueue"]
CMD ["--help"]
