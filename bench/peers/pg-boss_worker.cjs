// pg-boss with whole batches given to one handler, completed together: SIZE is the size of a batch. A full batch is
// followed by the next without a pause (burstWhenBatchFull); the queue whose latency is measured has LISTEN/NOTIFY on.
// One statement enqueues 1,000 jobs (insert). Finished jobs stay in its table, as shipped.
"use strict";

const { PgBoss } = require("pg-boss");
const protocol = require("./protocol.cjs");

const { PGHOST: host, PGPORT: port, PGUSER: user, PGPASSWORD: password, PGDATABASE: database } = process.env;

function made(options) {
  const boss = new PgBoss({ host, port: Number(port || 5432), user, password, database, ...options });
  boss.on("error", (error) => console.error(error));
  return boss;
}

const handlers = {
  noop: (jobs) => Promise.all(jobs.map((job) => protocol.noop(job.data))),
  tell: async (jobs) => jobs.forEach((job) => protocol.tell(job.data)),
};

const peer = {
  async install() {
    const boss = made({ supervise: false, schedule: false });
    await boss.start();
    await boss.createQueue("noop");
    await boss.createQueue("tell", { notify: true });
    await boss.stop({ graceful: false });
  },
  async open() {
    this.boss = made({ supervise: false, schedule: false });
    await this.boss.start();
  },
  async close() {},
  async one(queue, payload) {
    await this.boss.send(queue, payload);
  },
  async many(queue, payloads) {
    const startAfter = protocol.delaySeconds || undefined;
    await this.boss.insert(queue, payloads.map((data) => ({ data, startAfter })));
  },
  async work(size, drain, ended) {
    const boss = made({ useListenNotify: true });
    await boss.start();
    const options = { batchSize: Number(size), pollingIntervalSeconds: 0.5, burstWhenBatchFull: Number(size) > 1 };
    await boss.work("noop", options, handlers.noop);
    await boss.work("tell", options, handlers.tell);
    await ended;
    await boss.stop({ graceful: true, timeout: 5000 });
  },
};

protocol.main(peer);
