// The official Node SimpleConsumer, as its users write it. Reads JSON from stdin and prints JSON.

const { readFileSync } = require('node:fs');
const { FilterExpression, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

async function main() {
  const asked = JSON.parse(readFileSync(0, 'utf8'));
  const [accessKey, accessSecret] = asked.credentials ?? [];
  const kind = asked.kind === 'sql' ? FilterType.SQL : FilterType.TAG;
  const expression = new FilterExpression(asked.expression ?? '*', kind);
  const consumer = new SimpleConsumer({
    endpoints: asked.endpoints,
    sessionCredentials: accessKey && { accessKey, accessSecret },
    consumerGroup: asked.group,
    subscriptions: new Map().set(asked.topic, expression),
    awaitDuration: 5000,
    requestTimeout: 30_000,
  });
  await consumer.startup();
  const received = [];
  const deadline = Date.now() + 30000;
  while (received.length < asked.count && Date.now() < deadline) {
    let messages = [];
    try {
      messages = await consumer.receive(32, (asked.invisible_s ?? 10) * 1000);
    } catch (error) {
      if (!error.message.includes('no new message')) throw error;
    }
    for (const message of messages) {
      received.push({
        body: message.body.toString(),
        id: message.messageId,
        tag: message.tag ?? null,
        keys: [...message.keys].sort(),
        properties: Object.fromEntries(message.properties),
        attempt: message.deliveryAttempt,
        group: message.messageGroup || null,
        corrupted: message.corrupted ?? false,
      });
      if (message.deliveryAttempt <= (asked.give_back ?? 0)) {
        await consumer.changeInvisibleDuration(message, 1000);
      } else {
        await consumer.ack(message);
      }
    }
  }
  await consumer.shutdown();
  console.log(JSON.stringify(received));
}

main();
