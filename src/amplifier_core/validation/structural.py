"""The published name of the structural test suites, see `amplifier_kit.validation.suites`."""

from amplifier_core.module_checks import check_on_session_ready as check_on_session_ready
from amplifier_kit.validation.suites import (
    ContextStructuralTests as ContextStructuralTests,
)
from amplifier_kit.validation.suites import (
    HookStructuralTests as HookStructuralTests,
)
from amplifier_kit.validation.suites import (
    OrchestratorStructuralTests as OrchestratorStructuralTests,
)
from amplifier_kit.validation.suites import (
    ProviderStructuralTests as ProviderStructuralTests,
)
from amplifier_kit.validation.suites import (
    ToolStructuralTests as ToolStructuralTests,
)
