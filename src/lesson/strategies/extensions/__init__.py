"""Extensions of LESSON that are not in the paper."""
