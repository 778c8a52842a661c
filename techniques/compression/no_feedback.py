"""No feedback: what a compressor does not send is lost. The comparison that shows what error feedback is worth.

Helps: unbiased compressors; saves a residual a parameter. Does not: biased compressors at low density, which may not
converge. Source: the ablation of Karimireddy et al., ICML 2019 (arXiv:1901.09847).
"""

from orch.plan import Plan
from orch.technique import ALL_FORMS, Context, Form, Knobs, Slot, Technique


class Config(Knobs):
    """No knobs."""


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Leave the plan as it is: the slot is taken, so no default fills it."""
    return plan


technique = Technique(
    name="no-feedback",
    slot=Slot.FEEDBACK,
    rewrite=rewrite,
    source="arXiv:1901.09847",
    lossless=True,
    config=Config,
    needs=ALL_FORMS - {Form.DENSE},
)
