"""What is no envelope, and how it is sent."""

import pytest

ONE_SERVER = pytest.mark.parametrize("server", ["no-persist"], indirect=True)
"""What is refused before anything is kept need not be tried with both ways of keeping it."""


# Bodies

NO_ENVELOPES = [
    *(
        "",
        " ",
        "\n",
        "hello",
        "{",
        "}",
        "{]",
        "nul",
        "undefined",
        "NaN",
        "'a'",
        "{'jsonrpc':'2.0'}",
        "\ufeff{}",
        "{} {}",
    ),
    *("true", "null", "5", '"text"', "{}", '{"a":1}', "[]", "[[]]"),
    '[{"jsonrpc":"2.0","id":1,"method":"x/echo"}]',
    '[{"jsonrpc":"2.0","id":1,"method":"x/echo"},{"jsonrpc":"2.0","id":2,"method":"x/echo"}]',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo"}{"jsonrpc":"2.0","id":2,"method":"x/echo"}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo"}\n{"jsonrpc":"2.0","id":2,"method":"x/echo"}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo",}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":"\\q"}}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":"one\ntwo"}}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":"\x00"}}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":01}}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":NaN}}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":Infinity}}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":[1,]}',
    '{"jsonrpc":"2.0","id":1,"method":"x/echo"} // a comment',
    '{"id":1,"method":"x/echo"}',
    *(f'{{"jsonrpc":{v},"id":1,"method":"x/echo"}}' for v in ('"1.0"', '"2"', "2.0", "2", "null", '["2.0"]', '"2.0 "')),
    '{"jsonrpc":"2.0"}',
    '{"jsonrpc":"2.0","id":1}',
    '{"jsonrpc":"2.0","id":1,"params":{}}',
    *(f'{{"jsonrpc":"2.0","id":1,"method":{method}}}' for method in ("null", "5", "true", '""', '["x/echo"]', "{}")),
    '{"jsonrpc":"2.0","result":{}}',
    '{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}',
]
