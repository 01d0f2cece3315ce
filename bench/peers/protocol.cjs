// What protocol.py is for Python: the commands, the lines that are printed, the settings in the environment.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");

const BULK = 1000;
const env = (name, fallback) => Number(process.env[name] || fallback);
const every = env("BENCH_EVERY", 0);
const milliseconds = env("BENCH_MS", 0);
// PostgreSQL compresses what is big and repeats itself; then 8 KB would be none.
const characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const random = () => characters[Math.floor(Math.random() * characters.length)];
const pad = Array.from({ length: env("BENCH_BYTES", 0) }, random).join("");
const delaySeconds = env("BENCH_DELAY", 0);

const now = () => Number(process.hrtime.bigint()) / 1e9;
const print = (line) => fs.writeSync(1, `${line}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const payload = (i) => (pad ? { i, pad } : { i });

let count = 0;
function handled() {
  count += 1;
  if (every && (count === 1 || count % every === 0)) print(`# ${count} ${now()} ${process.pid}`);
}

// A noop that does not sleep must not wait for anything either.
const noop = () => {
  handled();
  return milliseconds ? sleep(milliseconds) : undefined;
};
const tell = ({ i }) => print(`${i} ${now()}`);

async function bulk(peer, first, many) {
  for (let start = first; start < first + many; start += BULK) {
    const length = Math.min(BULK, first + many - start);
    await peer.many("noop", Array.from({ length }, (_, k) => payload(start + k)));
  }
}

const commands = {
  async enqueue(peer, many) {
    const started = now();
    await bulk(peer, 0, Number(many));
    print(now() - started);
  },
  async single(peer, many) {
    const started = now();
    for (let i = 0; i < Number(many); i += 1) await peer.one("noop", payload(i));
    print(now() - started);
  },
  async trickle(peer, many) {
    for (let i = 0; i < Number(many); i += 1) {
      await sleep(20 + 40 * Math.random());
      print(`${i} ${now()}`);
      await peer.one("tell", { i });
    }
  },
  async feed(peer) {
    let first = 0;
    for await (const line of readline.createInterface({ input: process.stdin })) {
      await bulk(peer, first, Number(line));
      first += Number(line);
      print(line);
    }
  },
};

async function main(peer) {
  const [what, ...rest] = process.argv.slice(2);
  if (what === "install") {
    await peer.install();
  } else if (what === "work") {
    const ended = new Promise((resolve) => {
      process.stdin.on("end", resolve).resume();
      process.on("SIGTERM", resolve);
    });
    await peer.work(rest[0], rest[1] === "drain", ended);
  } else {
    await peer.open();
    await commands[what](peer, ...rest);
    await peer.close();
  }
  process.exit(0);
}

module.exports = { delaySeconds, main, noop, tell };
