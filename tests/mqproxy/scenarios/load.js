// The official Node producer sends until its stdin is closed. Its first line is JSON; prints a line for each send.

const { createInterface } = require('node:readline');
const { setTimeout: pause } = require('node:timers/promises');
const { Producer } = require('rocketmq-client-nodejs');

const input = createInterface({ input: process.stdin });
let isStopping = false;
input.once('close', () => { isStopping = true; });

async function send(asked) {
  const producer = new Producer({ endpoints: asked.endpoints, topics: [asked.topic] });
  await producer.startup();
  for (let number = 0; !isStopping; number++) {
    const body = `${asked.name}-${number}`;
    try {
      await producer.send({ topic: asked.topic, body: Buffer.from(body) });
      console.log(JSON.stringify({ sent: body }));
    } catch (error) {
      console.log(JSON.stringify({ error: `${body}: ${error.message}` }));
    }
    await pause(asked.pause_s * 1000);
  }
  await producer.shutdown();
}

input.once('line', line => send(JSON.parse(line)));
