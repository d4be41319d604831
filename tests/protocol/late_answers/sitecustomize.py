"""On the path of debugpy's adapter: it looks late whether an evaluation was answered.

What has come meanwhile, the answer among it, is then handled before the answer is: so it happens
by itself where its thread has to wait for a core.
"""

import time

from debugpy.common import messaging

_on_response = messaging.OutgoingRequest.on_response


def _late(self, response_handler):
    if self.command == "evaluate":
        time.sleep(0.3)
    _on_response(self, response_handler)


messaging.OutgoingRequest.on_response = _late
