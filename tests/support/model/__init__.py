"""A model server for tests: real agents talk to it on loopback, and it says what a test has scripted.

A test registers a script and puts its marker into a prompt; nothing else ties the two together, so that tests can run
at the same time and agents may send whatever they like besides:

    script = model.script(Call("Write", {"file_path": path, "content": "hello"}), Say("Done."))
    await client.prompt(session, f"Please write. {script.marker}")
    assert script.requests[1].conversation.turns[-1].text == "..."   # what the model got of the tool

`script.py` has the words of scripts, `server.py` the server, `api.py` what a vendor's API has to offer it. To add one:

1. Write a module like `anthropic.py` with the functions of `api.Api`.
2. Add it to `APIS` in `server.py`.
3. Add an example of its requests in `test_<api>.py` beside it.
"""
