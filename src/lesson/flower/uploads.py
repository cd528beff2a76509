"""A mod with which clients compress their updates.

This module is imported by every process that Flower starts for a message to a client, so it imports nothing heavy.
"""

from collections.abc import Callable

from flwr.app import Context, Message

ASKED = "lesson.upload"
"""Name of the record in a message that asks for a compressed upload."""


def compress_uploads(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Compress the update in a reply if `LessonStrategy` asks for it: `ClientApp(mods=[compress_uploads, …])`."""
    asked = message.content.config_records.get(ASKED)
    if asked is None:
        return call_next(message, context)
    from lesson.flower.codec import begin_upload  # it imports torch, which takes a second

    compress = begin_upload(asked, message.content, context.state)
    reply = call_next(message, context)
    if reply.has_content():
        compress(reply.content)
    return reply
