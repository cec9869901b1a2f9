// The official Node PushConsumer, as its users write it. Reads JSON from stdin and prints JSON.

const { readFileSync } = require('node:fs');
const { setTimeout: pause } = require('node:timers/promises');
const { ConsumeResult, FilterExpression, PushConsumer } = require('rocketmq-client-nodejs');
const { FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

async function main() {
  const asked = JSON.parse(readFileSync(0, 'utf8'));
  const [accessKey, accessSecret] = asked.credentials ?? [];
  const kind = asked.kind === 'sql' ? FilterType.SQL : FilterType.TAG;
  const consumed = [];
  let finish;
  const done = new Promise(resolve => { finish = resolve; });
  const consumer = new PushConsumer({
    endpoints: asked.endpoints,
    sessionCredentials: accessKey && { accessKey, accessSecret },
    consumerGroup: asked.group,
    subscriptions: new Map().set(asked.topic, new FilterExpression(asked.expression ?? '*', kind)),
    messageListener: {
      async consume(message) {
        await pause((asked.handler_s ?? 0) * 1000);
        const body = message.body.toString();
        consumed.push({ body, attempt: message.deliveryAttempt, group: message.messageGroup || null });
        if (consumed.length >= asked.count) finish();
        return (asked.failing ?? []).includes(body) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  await Promise.race([done, pause(15000, null, { ref: false })]);
  await consumer.shutdown();
  console.log(JSON.stringify(consumed));
  // After the shutdown of a PushConsumer its timers keep Node alive.
  process.exit(0);
}

main();
