"""Modes, models and options as real agents tell them, and how they tell of changes. Measured; long lists cut short."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.support.running import scripted

Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """What an agent answers to session/new, what it sends when something is set, which methods it does not have."""

    offers: Json
    tells: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    lacks: tuple[str, ...] = ()
    mode: tuple[str, str] = ("", "")
    """The mode at the start, and another one."""
    model: tuple[str, str] | None = None
    any_model: bool = False

    def agent(self) -> str:
        """The lines of agents.toml for a scripted agent of this shape."""
        flags = ["--settings", json.dumps(self.offers), "--tells", json.dumps(self.tells)]
        flags += ["--lacks", ",".join(f"session/{name}" for name in self.lacks)] if self.lacks else []
        return scripted(*flags) + f"\nany_model = {str(self.any_model).lower()}"


def modes(current: str, *ids: str) -> Json:
    return {"currentModeId": current, "availableModes": [{"id": id, "name": id.capitalize()} for id in ids]}


def models(current: str, *ids: str) -> Json:
    available = [{"modelId": id, "name": id, "description": None} for id in ids]
    return {"currentModelId": current, "availableModels": available}


def select(id: str, current: str, *values: str, category: str | None = None) -> Json:
    options = [{"value": value, "name": value.capitalize(), "description": f"It is {value}"} for value in values]
    return {
        "id": id,
        "name": id.capitalize(),
        "category": category or id,
        "type": "select",
        "currentValue": current,
        "options": options,
    }


_URL = "https://agentclientprotocol.com/protocol/session-modes#"

SHAPES = {
    "claude": Shape(
        {
            "modes": modes("default", "default", "acceptEdits", "plan", "auto"),
            "configOptions": [
                select("mode", "default", "default", "acceptEdits", "plan", "auto"),
                select("model", "default", "default", "opus", "haiku"),
                select("effort", "default", "default", "low", "high", category="thought_level"),
                select("fast", "off", "on", "off", category="model_config"),
            ],
        },
        {"set_mode": ["options"], "set_config_option:mode": ["mode"]},
        lacks=("set_model",),
        mode=("default", "plan"),
        model=("default", "haiku"),
    ),
    "codex": Shape(
        {
            "models": models("gpt-5.5[medium]", "gpt-6.1-sol[low]", "gpt-6.1-sol[high]", "gpt-5.5[medium]"),
            "modes": modes("agent", "read-only", "workspace-write", "agent", "agent-full-access"),
            "configOptions": [
                select("mode", "agent", "read-only", "workspace-write", "agent", "agent-full-access"),
                select("collaboration_mode", "default", "default", "plan"),
                select("model", "gpt-5.5", "gpt-6.1-sol", "gpt-5.5"),
                select("reasoning_effort", "medium", "low", "medium", "high", category="thought_level"),
            ],
        },
        {"set_mode": ["options"], "set_model": ["options"], "set_config_option": ["options"]},
        mode=("agent", "read-only"),
        model=("gpt-5.5", "gpt-6.1-sol"),
    ),
    "gemini": Shape(
        {
            "modes": modes("default", "default", "autoEdit", "yolo", "plan"),
            # What it was started with need not be in its list.
            "models": models("gemini-2.5-flash", "auto", "gemini-2.5-pro", "gemini-3.8-flash"),
        },
        {"set_mode": ["text"]},
        lacks=("set_config_option",),
        mode=("default", "plan"),
        model=("gemini-2.5-flash", "gemini-2.5-pro"),
        any_model=True,
    ),
    "opencode": Shape(
        {
            "configOptions": [
                select("model", "loop/mock-model", "loop/mock-model", "loop/mock-small"),
                select("effort", "low", "low", "high", category="thought_level"),
                select("mode", "build", "build", "plan"),
            ],
        },
        {"set_config_option:model": ["options"]},
        mode=("build", "plan"),
        model=("loop/mock-model", "loop/mock-small"),
    ),
    "qwen": Shape(
        {
            "models": models("mock-model(openai)", "mock-model(openai)", "mock-two(openai)"),
            "modes": modes("default", "plan", "default", "auto-edit", "yolo"),
            "configOptions": [
                select("mode", "default", "plan", "default", "auto-edit", "yolo"),
                select("model", "mock-model(openai)", "mock-model(openai)", "mock-two(openai)"),
            ],
        },
        {"set_mode": ["vendor"], "set_model": ["vendor"], "set_config_option": ["vendor"]},
        mode=("default", "yolo"),
        model=("mock-model(openai)", "mock-two(openai)"),
    ),
    "copilot": Shape(
        {
            "configOptions": [
                select("mode", f"{_URL}agent", f"{_URL}agent", f"{_URL}plan", f"{_URL}autopilot"),
                select("allow_all", "off", "on", "off", category="permissions"),
            ],
            "modes": modes(f"{_URL}agent", f"{_URL}agent", f"{_URL}plan", f"{_URL}autopilot"),
        },
        {
            "set_mode": ["mode", "late options"],
            "set_config_option:mode": ["mode", "late options"],
            "set_config_option": ["late options"],
        },
        mode=(f"{_URL}agent", f"{_URL}plan"),
    ),
    "pi": Shape(
        {
            "configOptions": [
                select("model", "mock/mock-a", "mock/mock-a", "mock/mock-b"),
                select("thought_level", "off", "off", "high"),
            ],
            "models": models("mock/mock-a", "mock/mock-a", "mock/mock-b"),
            # Its modes are how much it thinks; no option calls itself a mode.
            "modes": modes("off", "off", "high"),
        },
        {"set_mode": ["mode", "options"], "set_config_option": ["mode", "options"]},
        lacks=("set_model",),
        mode=("off", "high"),
        model=("mock/mock-a", "mock/mock-b"),
    ),
    "goose": Shape(
        {
            "modes": modes("auto", "auto", "approve", "chat"),
            "configOptions": [
                select("provider", "openai", "goose", "openai") | {"category": None},
                select("mode", "auto", "auto", "approve", "chat"),
                select("model", "gpt-4o", "gpt-4o", "o3"),
            ],
        },
        {"set_mode": ["mode"], "set_config_option": ["options"]},
        lacks=("set_model",),
        mode=("auto", "chat"),
        model=("gpt-4o", "o3"),
        any_model=True,
    ),
}
