"""The Python SDK's own prompts repeat their heads, which the server then does not parse again."""

from tests.support.client import run
from tests.support.cutting import proxy
from tests.support.repeating import Recording, check_repeats
from tests.support.running import Server
from tests.support.sdk import connected, new_session, play, texts


def test_prompts_repeat_the_head_of_the_prompt_before(server: Server) -> None:
    async def scenario() -> None:
        async with (
            proxy(server.url, Recording) as recording,
            connected(server, recording.url) as client,
        ):
            session = await new_session(client, server)
            recording.posts.clear()
            for word in ("one", "another, longer", "three"):
                assert await texts(play(session, [["say", word]])) == [word]

            check_repeats(recording.posts)

    run(scenario())
