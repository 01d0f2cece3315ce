// graphile-worker as its page on performance says: a local queue and batched completions while it drains. SIZE is
// concurrency, size of the local queue and the milliseconds that completions wait for each other: 24/500/0. Waiting for
// single jobs it has neither, because both cost latency.
// One round trip enqueues 1,000 jobs (addJobs). Finished jobs are deleted: it has no other way.
"use strict";

const { consoleLogFactory, Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");
const protocol = require("./protocol.cjs");

const logger = new Logger((scope) => {
  const print = consoleLogFactory(scope);
  return (level, message, meta) => (level === "error" ? print(level, message, meta) : undefined);
});

// An ended connection at the end of a measure is no news, and it wants a handler on every pool.
function pool(options) {
  const made = new Pool(options);
  const quiet = () => {};
  made.on("error", quiet);
  made.on("connect", (client) => client.on("error", quiet));
  return made;
}

const runAt = () => (protocol.delaySeconds ? { runAt: new Date(Date.now() + 1000 * protocol.delaySeconds) } : {});

const peer = {
  async install() {
    const utils = await makeWorkerUtils({ pgPool: pool(), logger });
    await utils.migrate();
  },
  async open() {
    this.utils = await makeWorkerUtils({ pgPool: pool(), logger });
  },
  async close() {},
  async one(identifier, payload) {
    await this.utils.addJob(identifier, payload);
  },
  async many(identifier, payloads) {
    await this.utils.addJobs(payloads.map((payload) => ({ identifier, payload, ...runAt() })));
  },
  async work(size, drain, ended) {
    const [concurrentJobs, local, delay] = size.split("/").map(Number);
    const batches = drain && local ? { localQueue: { size: local }, completeJobBatchDelay: delay, failJobBatchDelay: delay } : {};
    const runner = await run({
      pgPool: pool({ max: Math.min(Math.max(concurrentJobs + 2, 10), 30) }),
      noHandleSignals: true,
      taskList: { noop: protocol.noop, tell: protocol.tell },
      logger,
      preset: { worker: { concurrentJobs, ...batches } },
    });
    await ended;
    await runner.stop();
  },
};

protocol.main(peer);
