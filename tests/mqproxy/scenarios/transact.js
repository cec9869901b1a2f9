// The official Node producer of transactions, as its users write it. Reads and prints the lines of transact.py.

const { createInterface } = require('node:readline');
const { Producer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const input = createInterface({ input: process.stdin });
const closed = new Promise(resolve => input.once('close', resolve));

async function run(asked) {
  const checked = [];
  const checker = {
    async check(message) {
      const body = message.body.toString();
      const properties = Object.fromEntries(message.properties);
      checked.push({ body, id: message.messageId, properties, tag: message.tag });
      return TransactionResolution[asked.answers[body] ?? 'ROLLBACK'];
    },
  };
  const producer = new Producer({ endpoints: asked.endpoints, topics: [asked.topic], checker, requestTimeout: 30_000 });
  await producer.startup();
  if (asked.tells_id) console.log(JSON.stringify(producer.clientId));
  const results = [];
  for (const described of asked.messages) {
    const message = { topic: asked.topic, body: Buffer.from(described.body), tag: 'tea' };
    message.properties = new Map([['shop', 'north']]);
    try {
      const transaction = producer.beginTransaction();
      const receipt = await producer.send(message, transaction);
      if (described.end) await transaction[described.end]();
      results.push({ id: receipt.messageId, transaction: receipt.transactionId });
    } catch (error) {
      results.push({ error: error.message });
    }
  }
  console.log(JSON.stringify(results));
  await closed;
  console.log(JSON.stringify(checked));
  await producer.shutdown();
}

input.once('line', line => run(JSON.parse(line)));
