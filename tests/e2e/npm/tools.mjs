// SPDX-License-Identifier: Apache-2.0
// Tools and structured output of the npm clients against a server: node tools.mjs BASE_URL. Prints {"client": value}, where
// each value follows the one schema; any failure ends it with a status that is not 0.
import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamObject, streamText, tool } from "ai";
import OpenAI from "openai";

const baseURL = process.argv[2];
const model = "toy";
const question = "What is the weather in Paris?";
const messages = [{ role: "user", content: question }];
const schema = {
  type: "object",
  properties: {
    city: { type: "string", maxLength: 20 },
    unit: { enum: ["celsius", "fahrenheit"] },
    days: { enum: [1, 2, 3] },
  },
  required: ["city", "unit", "days"],
  additionalProperties: false,
};
const values = {};

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const chat = {
  model,
  messages,
  temperature: 0,
  max_tokens: 100,
  tools: [{ type: "function", function: { name: "get_weather", description: "Weather of a city", parameters: schema } }],
  tool_choice: "required",
  parallel_tool_calls: false,
};
const whole = (await client.chat.completions.create(chat)).choices[0];
assert.equal(whole.finish_reason, "tool_calls");
values.chat = JSON.parse(whole.message.tool_calls[0].function.arguments);
const streamed = (await client.chat.completions.stream(chat).finalChatCompletion()).choices[0];
values.chat_stream = JSON.parse(streamed.message.tool_calls[0].function.arguments);
assert.deepEqual(values.chat_stream, values.chat);

const response = await client.responses.create({
  model,
  input: question,
  temperature: 0,
  max_output_tokens: 100,
  tools: [{ type: "function", name: "get_weather", description: "Weather of a city", parameters: schema, strict: true }],
  tool_choice: { type: "function", name: "get_weather" },
});
values.responses = JSON.parse(response.output[0].arguments);
const answered = await client.responses.create({
  model,
  previous_response_id: response.id,
  input: [{ type: "function_call_output", call_id: response.output[0].call_id, output: "It is sunny with 21 degrees." }],
  temperature: 0,
  max_output_tokens: 100,
  text: {
    format: {
      type: "json_schema",
      name: "degrees",
      schema: {
        type: "object",
        properties: { degrees: { type: "integer", minimum: 0, maximum: 99 } },
        required: ["degrees"],
        additionalProperties: false,
      },
    },
  },
});
assert.deepEqual(JSON.parse(answered.output_text), { degrees: 21 });
const formatted = await client.responses.parse({
  model,
  input: question,
  temperature: 0,
  max_output_tokens: 100,
  text: { format: { type: "json_schema", name: "weather", schema, strict: true } },
});
values.responses_format = JSON.parse(formatted.output_text);

const provider = createOpenAICompatible({ name: "inferd", baseURL, includeUsage: true, supportsStructuredOutputs: true });
const common = { model: provider(model), prompt: question, temperature: 0, maxOutputTokens: 100, maxRetries: 0 };
const asked = {
  ...common,
  tools: { get_weather: tool({ description: "Weather of a city", inputSchema: jsonSchema(schema) }) },
  toolChoice: { type: "tool", toolName: "get_weather" },
};
const called = await generateText(asked);
assert.equal(called.finishReason, "tool-calls");
values.ai_sdk = called.toolCalls[0].input;
const calling = streamText(asked);
values.ai_sdk_stream = (await calling.toolCalls)[0].input;
assert.deepEqual(values.ai_sdk_stream, values.ai_sdk);
values.ai_sdk_object = (await generateObject({ ...common, schema: jsonSchema(schema) })).object;
const object = streamObject({ ...common, schema: jsonSchema(schema) });
for await (const part of object.partialObjectStream) {
  assert.equal(typeof part, "object");
}
values.ai_sdk_object_stream = await object.object;
assert.deepEqual(values.ai_sdk_object_stream, values.ai_sdk_object);

console.log(JSON.stringify(values));
