"""The TypeScript SDK's own prompts repeat their heads, which the server then does not parse again."""

import json

from tests.sdk_typescript.node import SDK, node
from tests.support.client import run
from tests.support.cutting import proxy
from tests.support.repeating import Recording, check_repeats, run_program
from tests.support.running import Server

PROMPTS = """
import { SandboxAgent } from %s;
const client = await SandboxAgent.connect(process.env.URL, { token: process.env.TOKEN });
const session = await client.sessions.create("scripted", { cwd: process.env.WORK });
for (const word of ["one", "another, longer", "three"]) {
  for await (const _ of session.prompt(JSON.stringify([["say", word]])));
}
await client.close();
"""


def test_prompts_repeat_the_head_of_the_prompt_before(server: Server) -> None:
    async def scenario() -> None:
        async with proxy(server.url, Recording) as recording:
            program = PROMPTS % json.dumps(str(SDK / "dist" / "index.js"))
            facts = {"URL": recording.url, "TOKEN": server.token or "", "WORK": str(server.work)}
            await run_program(node(), "--input-type=module", "--eval", program, **facts)

            # The first ones open a connection and a session.
            check_repeats(recording.posts[-3:])

    run(scenario())
