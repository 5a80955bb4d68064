/**
 * Answers an agent's questions: at once in a handler, or later by the question's id, as a web application would.
 *
 * usage: node examples/typescript/questions.ts [--later] [agent] [prompt ...]
 *
 * Answers are read from the terminal: an option's number, or a text of your own; several are separated by commas.
 */

import { createInterface } from "node:readline";

import { type Question, type QuestionHandler, type QuestionRequest, SandboxAgent, ServerProblem } from "sandboxagent";

const later = process.argv.includes("--later");
const [agent = "mock", ...prompts] = process.argv.slice(2).filter((argument) => argument !== "--later");
const terminal = createInterface({ input: process.stdin });
const lines = terminal[Symbol.asyncIterator]();

/** The handler has the answer: the agent waits for as long as it takes. */
const atOnce: QuestionHandler = async (request) => {
  const answers = await askAll(request);
  return answers ? request.answer(...answers) : request.reject();
};

/** The handler only takes note and returns nothing; the answer comes later, by the question's id. */
const takeNote: QuestionHandler = (request) => {
  // Here a web application would show it to a browser.
  console.log(`[${request.id} is open]`);
  void answerLater(request);
};

/** What a route such as POST /questions/:id does. */
async function answerLater(request: QuestionRequest): Promise<void> {
  const answers = await askAll(request);
  try {
    if (answers) await client.replyQuestion(request.id, answers);
    else await client.rejectQuestion(request.id);
  } catch (error) {
    if (!(error instanceof ServerProblem)) throw error;
    console.log(`[${error.detail}]`);
    // It is still open then; after `already-answered` it is not.
    if (error.slug === "wrong-answer") await answerLater(request);
  }
}

/** Asks a person every question of a request; undefined without a terminal. */
async function askAll({ questions }: QuestionRequest): Promise<string[][] | undefined> {
  const answers: string[][] = [];
  for (const question of questions) {
    const answer = await ask(question);
    if (!answer) return undefined;
    answers.push(answer);
  }
  return answers;
}

/** The answers to one question: ids of options, or texts. */
async function ask({ question, options, multiSelect }: Question): Promise<string[] | undefined> {
  console.log(question);
  for (const [index, { label, description }] of options.entries()) {
    console.log(`  ${index + 1}. ${label}${description ? `: ${description}` : ""}`);
  }
  process.stdout.write("Your answer: ");
  const line = await lines.next();
  if (line.done) return undefined;
  // Only where several may be chosen is a comma more than a comma.
  const texts = multiSelect ? line.value.split(",") : [line.value];
  return texts.map((text) => options[Number(text) - 1]?.id ?? text.trim());
}

await using client = await SandboxAgent.start({ onQuestion: later ? takeNote : atOnce });
const session = await client.sessions.create(agent);
for (const prompt of prompts.length > 0 ? prompts : ["Ask me a question, please."]) {
  console.log(await session.prompt(prompt).text());
}
terminal.close();
