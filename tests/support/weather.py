"""The tool of the README's first example."""

from __future__ import annotations

from typing import Any

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city"},
                "unit": {"type": "string", "description": "Unit", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
