"""Why a model that a dry run was given cannot be run."""


class DrivenError(Exception):
    """What was given to the driver cannot be run; a sentence, a place and a way out."""

    def __init__(self, problem: str, *, where: str = "", hint: str = "") -> None:
        self.problem, self.where, self.hint = problem, where, hint
        super().__init__(problem)
