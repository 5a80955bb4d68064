"""Answers an agent's questions: at once in a handler, or later by the question's id, as a web application would.

usage: python examples/python/questions.py [--later] [agent] [prompt ...]

Answers are read from the terminal: an option's number, or a text of your own; several are separated by commas.
"""

import asyncio
import sys

from sandboxagent import Answer, Question, QuestionRequest, SandboxAgent, ServerProblem

PROMPTS = ("Ask me a question, please.",)


async def at_once(agent: str = "mock", *prompts: str) -> None:
    """The handler has the answer: the agent waits for as long as it takes."""

    async def on_question(request: QuestionRequest) -> Answer:
        try:
            return request.answer(*[await asyncio.to_thread(ask, question) for question in request.questions])
        except EOFError:
            return request.reject()

    async with SandboxAgent.start(on_question=on_question) as client:
        session = await client.sessions.create(agent)
        for prompt in prompts or PROMPTS:
            print(await session.prompt(prompt).text())


async def later(agent: str = "mock", *prompts: str) -> None:
    """The handler only takes note; the answer comes later, by the question's id."""
    inbox: asyncio.Queue[QuestionRequest] = asyncio.Queue()

    def on_question(request: QuestionRequest) -> None:
        # Here a web application would show it to a browser. To return None leaves it open.
        inbox.put_nowait(request)

    async with SandboxAgent.start(on_question=on_question) as client:
        session = await client.sessions.create(agent)
        answering = asyncio.create_task(answer_all(client, inbox))
        for prompt in prompts or PROMPTS:
            print(await session.prompt(prompt).text())
        answering.cancel()


async def answer_all(client: SandboxAgent, inbox: asyncio.Queue[QuestionRequest]) -> None:
    """What a route such as POST /questions/{id} does, for one question after the other."""
    while True:
        request = await inbox.get()
        print(f"[{request.id} is open]")
        try:
            answers = [await asyncio.to_thread(ask, question) for question in request.questions]
            await client.reply_question(request.id, answers)
        except EOFError:
            await client.reject_question(request.id)
        except ServerProblem as problem:
            print(f"[{problem.detail}]")
            if problem.slug == "wrong-answer":  # It is still open; after `already-answered` it is not.
                inbox.put_nowait(request)


def ask(question: Question) -> list[str]:
    """Ask a person one question; the answers are ids of options, or texts. Raises EOFError without a terminal."""
    print(question.question)
    for number, option in enumerate(question.options, 1):
        print(f"  {number}. {option.label}" + (f": {option.description}" if option.description else ""))
    line = input("Your answer: ")
    # Only where several may be chosen is a comma more than a comma.
    texts = [text.strip() for text in (line.split(",") if question.multi_select else [line])]
    ids = {str(number): option.id for number, option in enumerate(question.options, 1)}
    return [ids.get(text, text) for text in texts]


def main(*arguments: str) -> None:
    """Choose one of the two ways."""
    way = later if "--later" in arguments else at_once
    asyncio.run(way(*[each for each in arguments if each != "--later"]))


main(*sys.argv[1:])
