// The official Node SimpleConsumer or PushConsumer consumes until its stdin is closed. Its first line is JSON.
// Prints the lines of drain.py.

const { createInterface } = require('node:readline');
const { setTimeout: pause } = require('node:timers/promises');
const { ConsumeResult, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const input = createInterface({ input: process.stdin });
let isStopping = false;
const stopping = new Promise(resolve => input.once('close', () => { isStopping = true; resolve(); }));

function now() {
  return Number(process.hrtime.bigint());
}

function say(kind, asked, body) {
  console.log(JSON.stringify({ kind, asked, at: now(), body }));
}

async function push(asked, given) {
  const consumer = new PushConsumer({
    ...given,
    messageListener: {
      async consume(message) {
        await pause((asked.handler_s ?? 0) * 1000);
        say('got', now(), message.body.toString());
        return ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  await stopping;
  await consumer.shutdown();
  // After the shutdown of a PushConsumer its timers keep Node alive.
  process.exit(0);
}

async function receive(consumer, asked) {
  const before = now();
  for (const message of await consumer.receive(8, asked.invisible_s * 1000)) {
    say('got', before, message.body.toString());
    await consumer.ack(message);
    say('acked', before, message.body.toString());
  }
}

async function simple(asked, given) {
  const consumer = new SimpleConsumer({ ...given, awaitDuration: 2000 });
  await consumer.startup();
  while (!isStopping) {
    try {
      await receive(consumer, asked);
    } catch (error) {
      if (error.message.includes('no new message')) continue;
      console.log(JSON.stringify({ error: error.message }));
      await pause(100);
    }
  }
  await consumer.shutdown();
}

input.once('line', line => {
  const asked = JSON.parse(line);
  const subscriptions = new Map().set(asked.topic, '*');
  const given = { endpoints: asked.endpoints, consumerGroup: asked.group, subscriptions };
  return asked.push ? push(asked, given) : simple(asked, given);
});
