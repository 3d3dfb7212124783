"""The part of `verify` that is about views: what is derived from events, held against them."""

from ...domain.views import ViewAudit
from .report import Check, Finding, Report


def view_check(audit: ViewAudit) -> Check:
    """What adds the findings about views to a report, each with its task and column."""

    async def check(report: Report) -> None:
        async for difference in audit.differences():
            text = str(difference)
            report.add(
                Finding("view differs", text, difference.position, difference.task_id or None)
            )
        report.figures["tasks"] = audit.checked.tasks

    return check
