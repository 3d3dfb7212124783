// Verifies messages with the npm package `standardwebhooks`: one JSON line in, one word out.
import { createInterface } from "node:readline";
import { Webhook } from "standardwebhooks";

for await (const line of createInterface({ input: process.stdin })) {
  const { secret, headers, body } = JSON.parse(line);
  try {
    new Webhook(secret).verify(Buffer.from(body, "base64"), headers);
    console.log("accepted");
  } catch (error) {
    console.log(`refused: ${error.message}`);
  }
}
