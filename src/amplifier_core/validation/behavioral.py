"""The published name of the behavioural test suites, see `amplifier_kit.validation.suites`."""

from amplifier_kit.validation.suites import (
    ContextBehaviorTests as ContextBehaviorTests,
)
from amplifier_kit.validation.suites import (
    HookBehaviorTests as HookBehaviorTests,
)
from amplifier_kit.validation.suites import (
    OrchestratorBehaviorTests as OrchestratorBehaviorTests,
)
from amplifier_kit.validation.suites import (
    ProviderBehaviorTests as ProviderBehaviorTests,
)
from amplifier_kit.validation.suites import (
    ToolBehaviorTests as ToolBehaviorTests,
)
