// The official Node producer, as its users write it. Reads JSON from stdin and prints JSON.

const { readFileSync } = require('node:fs');
const { Producer } = require('rocketmq-client-nodejs');

async function main() {
  const asked = JSON.parse(readFileSync(0, 'utf8'));
  const [accessKey, accessSecret] = asked.credentials ?? [];
  const sessionCredentials = accessKey && { accessKey, accessSecret };
  const producer = new Producer({ endpoints: asked.endpoints, sessionCredentials, requestTimeout: 30_000 });
  await producer.startup();
  const results = [];
  for (const described of asked.messages) {
    const message = { topic: asked.topic, body: Buffer.from(described.body) };
    if (described.tag) message.tag = described.tag;
    if (described.key) message.keys = [described.key];
    if (described.properties) message.properties = new Map(Object.entries(described.properties));
    if (described.group) message.messageGroup = described.group;
    if (described.priority !== undefined) message.priority = described.priority;
    if (described.delay_s) message.delay = described.delay_s * 1000;
    try {
      const receipt = await producer.send(message);
      const result = { id: receipt.messageId, offset: receipt.offset, recall: receipt.recallHandle };
      if (described.recalled) {
        result.recalled = (await producer.recallMessage(asked.topic, receipt.recallHandle)).messageId;
      }
      results.push(result);
    } catch (error) {
      results.push({ error: error.message });
    }
  }
  await producer.shutdown();
  console.log(JSON.stringify(results));
}

main();
