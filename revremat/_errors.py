"""The one exception class for mistakes a user can mend."""


class UserError(ValueError):
    """What was written, what is wrong with it, and what to write instead.

    The command line prints its message as one sentence and no traceback.
    """
