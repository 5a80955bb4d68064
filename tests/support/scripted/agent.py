"""The methods of the scripted agent, and what it knows of its sessions."""

import os
from _signal import SIGKILL
from _thread import start_new_thread

from scripted.light import Event, loads
from scripted.program import Program, programs_in, steps_of
from scripted.wire import UPDATE, Answers, Wire, chunk, encode


class Agent:
    """Everything that is not a program."""

    def __init__(self, options):
        self.options = options
        self.programs = programs_in(options["programs"]) if "programs" in options else {}
        self.wire = Wire()
        self.answers = Answers()
        self.sessions = {}
        self.children = []
        self._cancellations = {}
        self._hanging = []
        self._prefix = os.urandom(4).hex()
        self._count = 0

    def run(self):
        for line in self.wire.lines():
            try:
                message = loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict):
                continue
            if "method" not in message:
                self.answers.arrived(message.get("id"), line)
            elif "id" in message:
                try:
                    self._request(message, line)
                except (KeyError, TypeError, AttributeError) as problem:
                    self.wire.send(id=message["id"], error={"code": -32602, "message": repr(problem)})
            elif message["method"] == "session/cancel":
                self.cancellation(message["params"]["sessionId"]).set()

    def cancellation(self, session_id):
        return self._cancellations.setdefault(session_id, Event())

    def _request(self, message, line):
        id, method, params = message["id"], message["method"], message.get("params") or {}
        if method in self.options.get("dies-at", "").split(","):
            os.kill(os.getpid(), SIGKILL)
        if method == "session/prompt":
            program = Program(self, id, params["sessionId"], steps_of(params["prompt"], self.programs))
            start_new_thread(program.run, ())
        elif method == "x/hang":
            self._hanging.append(id)
        elif method == "x/echo":
            text = line.decode("utf-8", "replace")
            self.wire.send(id=id, result={"method": method, "params": message.get("params"), "line": text})
        elif method == "x/error":
            code, reason = params.get("code", -32050), params.get("message", "as asked for")
            self.wire.send(id=id, error={"code": code, "message": reason})
        else:
            handler = getattr(self, "on_" + method.replace("/", "_"), None)
            if handler is None or method in self.options.get("lacks", "").split(","):
                self.wire.send(id=id, error={"code": -32601, "message": f"no such method: {method}"})
                return
            result = handler(params)
            if result is not None:
                self.wire.send(id=id, **result)
            if "late options" in self._tells(method, params):
                self._tell_options(params["sessionId"])

    def on_initialize(self, params):
        kind = self.options.get("bad-handshake")
        result = {
            "protocolVersion": 99 if kind == "version" else 1,
            "agentInfo": {"name": "scripted", "version": "1"},
            "agentCapabilities": self._capabilities(),
            "authMethods": [{"id": "browser", "name": "Log in"}] if "auth" in self.options else [],
        }
        if kind == "silent":
            return None
        if kind == "error":
            return {"error": {"code": -32603, "message": "no handshake today"}}
        return {"result": "garbage" if kind == "garbage" else result}

    def _capabilities(self):
        if "capabilities" in self.options:
            return loads(self.options["capabilities"])
        offered = {
            name: {} for name in ("list", "resume", "fork", "close", "delete") if f"no-{name}" not in self.options
        }
        return {
            "loadSession": "no-load" not in self.options,
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "sessionCapabilities": offered,
        }

    def on_authenticate(self, params):
        return {"result": {}}

    def on_logout(self, params):
        return {"result": {}}

    def on_session_new(self, params):
        self._count += 1
        session_id = self.options.get("session-id") or f"{self._prefix}-s{self._count}"
        if session_id.startswith("$"):
            session_id = params["_meta"]["sandboxagent.dev"][session_id[1:]]
        self.sessions[session_id] = {"cwd": params.get("cwd")}
        self._remember({"session": session_id, "cwd": params.get("cwd")})
        early = Program(self, None, session_id, [])
        for name, *arguments in loads(self.options.get("before-new", "[]")):
            getattr(early, f"do_{name}")(*arguments)
        return {"result": {"sessionId": session_id, **self._settings(session_id)}}

    on_session_fork = on_session_new

    def on_session_load(self, params):
        session_id = params["sessionId"]
        if self._unknown(session_id):
            return self._no_session(session_id)
        for kind, text in (("user_message_chunk", "an old question"), ("agent_message_chunk", "an old answer")):
            self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": chunk(text, kind)})
        return self.on_session_resume(params)

    def on_session_resume(self, params):
        session_id = params["sessionId"]
        if self._unknown(session_id):
            return self._no_session(session_id)
        self.sessions.setdefault(session_id, {"cwd": params.get("cwd")})
        return {"result": self._settings(session_id)}

    def on_session_list(self, params):
        known = self._remembered() | {session_id: facts.get("cwd") for session_id, facts in self.sessions.items()}
        return {"result": {"sessions": [{"sessionId": session_id, "cwd": cwd} for session_id, cwd in known.items()]}}

    def on_session_close(self, params):
        self.sessions.pop(params["sessionId"], None)
        return {"result": {}}

    on_session_delete = on_session_close

    def on_session_set_mode(self, params):
        self._set(params, "session/set_mode", "mode", params["modeId"])
        return {"result": {}}

    def on_session_set_config_option(self, params):
        self._set(params, "session/set_config_option", params["configId"], params["value"])
        return {"result": {"configOptions": self._settings(params["sessionId"]).get("configOptions", [])}}

    def on_session_set_model(self, params):
        self._set(params, "session/set_model", "model", params["modelId"])
        return {"result": {}}

    def _set(self, params, method, name, value):
        session_id = params["sessionId"]
        self.sessions.setdefault(session_id, {})[name] = value
        told = self._tells(method, params)
        if "text" in told:
            self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": chunk(f"[UPDATE] {value}")})
        if "vendor" in told:
            facts = {"v": 1, "sessionId": session_id, f"current{name.capitalize()}Id": value}
            self.wire.send(method=f"vendor/notify/session/{name}-update", params=facts)
        if "mode" in told:
            modes = self._settings(session_id)["modes"]
            update = {"sessionUpdate": "current_mode_update", "currentModeId": modes["currentModeId"]}
            self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": update})
        if "options" in told:
            self._tell_options(session_id)

    def _tells(self, method, params):
        tells = loads(self.options.get("tells", '{"set_mode": ["mode"]}'))
        name = method.removeprefix("session/")
        return tells.get(f"{name}:{params.get('configId')}", tells.get(name, []))

    def _tell_options(self, session_id):
        options = self._settings(session_id).get("configOptions", [])
        update = {"sessionUpdate": "config_option_update", "configOptions": options}
        self.wire.send(method=UPDATE, params={"sessionId": session_id, "update": update})

    def on_x_release(self, params):
        hanging, self._hanging = self._hanging, []
        for id in hanging:
            self.wire.send(id=id, result={"released": True})
        return {"result": {"released": len(hanging)}}

    def on_x_received(self, params):
        return {"result": {"lines": self.wire.received}}

    def _settings(self, session_id):
        settings, chosen = self._offered(), self.sessions.get(session_id, {})
        for name in ("mode", "model"):
            if name in chosen and f"{name}s" in settings:
                settings[f"{name}s"][f"current{name.capitalize()}Id"] = chosen[name]
        for option in settings.get("configOptions", []):
            value = chosen.get(option["id"], option["currentValue"])
            option["currentValue"] = value.partition("[")[0] if isinstance(value, str) else value
        return settings

    def _offered(self):
        if "settings" in self.options:
            return loads(self.options["settings"])
        if "plain" in self.options:
            return {}
        modes = [{"id": "default", "name": "Default"}, {"id": "plan", "name": "Plan"}]
        block = {"modes": {"currentModeId": "default", "availableModes": modes}}
        if "models" in self.options:
            models = [{"modelId": "small", "name": "Small"}, {"modelId": "large", "name": "Large"}]
            return {**block, "models": {"currentModelId": "small", "availableModels": models}}
        values = [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}]
        model = {"id": "model", "name": "Model", "category": "model", "type": "select"}
        return {**block, "configOptions": [{**model, "currentValue": "small", "options": values}]}

    def _unknown(self, session_id):
        return "state" in self.options and session_id not in self.sessions and session_id not in self._remembered()

    def _no_session(self, session_id):
        return {"error": {"code": -32002, "message": f"no such session: {session_id}"}}

    def _remember(self, fact):
        if "state" in self.options:
            with open(self.options["state"], "ab", buffering=0) as file:
                file.write(encode(fact) + b"\n")

    def _remembered(self):
        if "state" not in self.options:
            return {}
        with open(self.options["state"], "rb") as file:
            facts = [loads(line) for line in file]
        return {fact["session"]: fact["cwd"] for fact in facts if "session" in fact}
