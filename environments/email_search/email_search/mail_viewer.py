"""`MailViewer`: a `TrajectoryViewer` that shows trajectories of this task as a mail client would."""

from __future__ import annotations

from pathlib import Path

from art_nb.widgets import TaskPane, TrajectoryViewer
from email_search.mail_view import mail_lines, mail_view

HERE = Path(__file__).parent


class MailViewer(TrajectoryViewer):
    """Show queries with hits, the emails read, and the answer next to the true one. Arguments: as for TrajectoryViewer."""

    task_pane = TaskPane("mail", mail_view, mail_lines, HERE / "mail_view.js", HERE / "mail_view.css")
