"""The agents of the matrix."""

from tests.agents import (
    recipe_amp,
    recipe_claude,
    recipe_codex,
    recipe_copilot,
    recipe_gemini,
    recipe_goose,
    recipe_opencode,
    recipe_pi,
    recipe_qwen,
)

RECIPES = [
    recipe_claude.RECIPE,
    recipe_codex.RECIPE,
    recipe_opencode.RECIPE,
    recipe_gemini.RECIPE,
    recipe_qwen.RECIPE,
    recipe_goose.RECIPE,
    recipe_copilot.RECIPE,
    recipe_pi.RECIPE,
    recipe_amp.RECIPE,
]
