"""Stands where the interpreter would: `python -IS stub.py WHERE TOKEN ARGS...` is `python ARGS...`.

The zygote at the socket WHERE (`@`: the one that the host names; then TOKEN is the interpreter that
can start a host) forks the process that runs the program, with this one's standard
streams; working directory, environment and limits it reads from this process. What is left to do
here is to pass signals on and to end as the program did. Where no zygote answers, this becomes the
real interpreter.

Nothing is imported but what is built in: this costs one start of an interpreter without `site`, 20
ms. The file also runs where `tensorpoint` isn't installed.
"""

import posix
import sys

#: What a zygote says that can't or won't fork.
_COLD = b"cold"


def main() -> None:
    """Have the program run, and end as it did."""
    where, token, *argv = sys.argv[1:]
    if where == "@":
        where, token = _find(token, argv) or ("", "")
    connection = _ask(where, token, argv) if where else None
    if connection is None:
        posix.execve(sys.executable, [sys.executable, *argv], posix.environ)
    status = _follow(connection, argv)
    if status < 0:
        _die_of(-status)
    posix._exit(status & 0xFF)


def _find(ours, argv):
    """Socket and token of a zygote for this environment; None if the host has none now."""
    if posix.environ.get(b"TENSORPOINT_RESIDENT") == b"0":
        return None
    import _socket
    import json

    folder = _runtime_folder()
    try:
        if posix.lstat(folder).st_uid != posix.getuid():
            return None  # where anybody may write somebody was here before us
        with open(folder + "/token", encoding="ascii") as stream:
            token = stream.read()
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.settimeout(5.0)
        connection.connect(folder + "/host")
        variables = {
            name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
            for name, value in posix.environ.items()
        }
        environment = {"python": [sys.executable, *_options(argv)], "variables": variables}
        ask = {"token": token, "command": "acquire", "environment": environment}
        data = json.dumps(ask).encode() + b"\n"
        while data:
            data = data[connection.send(data) :]
        received = b""
        while not received.endswith(b"\n"):
            part = connection.recv(1 << 16)
            if not part:
                return None
            received += part
        answer = json.loads(received)
    except (OSError, ValueError):
        if posix.environ.get(b"TENSORPOINT_RESIDENT") == b"running":
            return None
        start = [ours, "-m", "tensorpoint", "host", "start", "--python", sys.executable]
        nowhere = [
            (posix.POSIX_SPAWN_OPEN, number, "/dev/null", posix.O_RDWR, 0) for number in range(3)
        ]
        try:
            posix.posix_spawn(ours, start, posix.environ, file_actions=nowhere, setsid=True)
        except OSError:
            pass  # it has been uninstalled: an interpreter is all that this can be
        return None
    return (answer["socket"], answer["token"]) if answer.get("state") == "ready" else None


def _runtime_folder():
    """As in `handover`, without importing it."""
    named = posix.environ.get(b"TENSORPOINT_RUNTIME_DIR")
    session = posix.environ.get(b"XDG_RUNTIME_DIR")
    if named:
        return named.decode("utf-8", "surrogateescape")
    import zlib

    package = __file__.rsplit("/", 3)[0]
    installation = f"{zlib.crc32(package.encode('utf-8', 'surrogateescape')):08x}"
    if session and _is_folder(session) and posix.access(session, posix.W_OK | posix.X_OK):
        return session.decode("utf-8", "surrogateescape") + f"/tensorpoint-{installation}"
    return f"/tmp/tensorpoint-{posix.getuid()}-{installation}"


def _is_folder(path):
    try:
        return posix.stat(path).st_mode & 0o170000 == 0o040000
    except OSError:
        return False


def _options(argv):
    """The interpreter's own options at the start of its arguments."""
    options = []
    for word in argv:
        if options and options[-1] in ("-X", "-W"):
            options.append(word)
        elif not word.startswith("-") or word in ("-", "-m", "-c") or word[:2] in ("-m", "-c"):
            break
        else:
            options.append(word)
    return options


def _ask(where, token, argv):
    """A connection on which the request has been sent; None if nobody is there to take it."""
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(where)
        files = _open_files(connection.fileno())
        body = repr({"token": token, "argv": tuple(argv), "files": tuple(files)}).encode(
            "utf-8", "backslashreplace"
        )
        data = b"%d\n%s" % (len(body), body)
        rights = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
        sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        while sent < len(data):
            sent += connection.send(data[sent:])
    except OSError:
        return None
    return connection


def _open_files(but):
    """The files that the interpreter would inherit."""
    found = []
    for name in posix.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number <= 2 or (number != but and posix.get_inheritable(number)):
                posix.fstat(number)
                found.append(number)
        except OSError:
            pass  # the one that listed the folder
    return sorted(found)


def _follow(connection, argv):
    """Pass signals on until the program has ended: its status, or minus the signal."""
    import _signal  # pyright: ignore[reportMissingImports]

    typed = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGCONT)

    def pass_on(number, _frame):
        word = b"group" if number in typed and _in_foreground() else b"signal"
        connection.send(b"%s %d\n" % (word, number))
        if number in (_signal.SIGTSTP, _signal.SIGTTIN, _signal.SIGTTOU):
            posix.kill(posix.getpid(), _signal.SIGSTOP)

    own = (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD, _signal.SIGPIPE, _signal.SIGXFSZ)
    for number in sorted(_signal.valid_signals()):
        if number not in own and _signal.getsignal(number) in (
            _signal.SIG_DFL,
            _signal.default_int_handler,
        ):
            try:
                _signal.signal(number, pass_on)
            except OSError:
                pass  # the C library's own
    received = b""
    running = False
    while True:
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        if not data:
            break
        received += data
        *lines, received = received.split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"exit":
                return int(number)
            running = running or word != _COLD
    connection.close()
    if running:
        posix.write(2, b"tensorpoint: the resident process has ended, and the program with it\n")
        return 1
    # It can't fork, or has gone without having done so.
    for other in _signal.valid_signals():
        if _signal.getsignal(other) is pass_on:
            _signal.signal(other, _signal.SIG_DFL)
    return posix.execve(sys.executable, [sys.executable, *argv], posix.environ)


def _in_foreground():
    """Whether the terminal sends what is typed to this process's group, so to all in it."""
    try:
        terminal = posix.open("/dev/tty", posix.O_RDWR | posix.O_NOCTTY)
    except OSError:
        return False
    try:
        return posix.tcgetpgrp(terminal) == posix.getpgrp()
    except OSError:
        return False
    finally:
        posix.close(terminal)


def _die_of(number):
    """End as the program did; the core, if any, is the program's."""
    import _signal  # pyright: ignore[reportMissingImports]

    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except ImportError:
        pass
    try:
        _signal.signal(number, _signal.SIG_DFL)
    except OSError:
        pass
    posix.kill(posix.getpid(), number)
    posix._exit(128 + number)


if __name__ == "__main__":
    main()
