"""Well-known capability names of providers and models (`ProviderInfo`, `ModelInfo`)."""

TOOLS = "tools"
STREAMING = "streaming"
THINKING = "thinking"
VISION = "vision"
JSON_MODE = "json_mode"
FAST = "fast"
CODE_EXECUTION = "code_execution"
WEB_SEARCH = "web_search"
DEEP_RESEARCH = "deep_research"
LOCAL = "local"
AUDIO = "audio"
IMAGE_GENERATION = "image_generation"
COMPUTER_USE = "computer_use"
EMBEDDINGS = "embeddings"
LONG_CONTEXT = "long_context"
BATCH = "batch"

ALL_WELL_KNOWN_CAPABILITIES: list[str] = [
    value for name, value in list(globals().items()) if name.isupper()
]
