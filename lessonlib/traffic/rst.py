"""reStructuredText as running text: prose without the markup, code in fences, everything else left out."""

import re

CODE = {"code", "code-block", "sourcecode", "testcode", "doctest", "parsed-literal", "ipython", "testoutput"}
DROPPED = {"c:macro", "centered", "contents", "csv-table", "currentmodule", "default-domain", "figure", "grammar-snippet",
           "highlight", "image", "include", "index", "list-table", "literalinclude", "meta", "miscnews", "module",
           "moduleauthor", "only", "productionlist", "program", "py:currentmodule", "raw", "rubric", "sectionauthor",
           "table", "tabularcolumns", "testcleanup", "testsetup", "toctree"}
LEADS = {"note": "Note: ", "warning": "Warning: ", "seealso": "See also: ", "tip": "Tip: ", "hint": "Hint: ",
         "important": "Important: ", "caution": "Caution: ", "impl-detail": "Implementation detail: ",
         "availability": "Availability: "}
VERSIONS = {"versionadded": "New in version", "versionchanged": "Changed in version",
            "deprecated": "Deprecated since version", "deprecated-removed": "Deprecated since version"}
CODE_ROLES = {"func", "meth", "class", "mod", "attr", "exc", "data", "const", "file", "keyword", "option", "envvar",
              "program", "command", "opcode", "token", "member", "type", "macro", "samp", "kbd", "source", "decorator"}
UNDERLINE = re.compile(r"^([=\-~^\"'`*+#.:_])\1{2,}\s*$")
BULLET = re.compile(r"^(?:[*+-]|#\.|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
OPTION = re.compile(r"^\s*:[\w-]+:")
TABLE = re.compile(r"^(?:\+[-=+]+\+|=+(?: +=+)+)\s*$")
DIRECTIVE = re.compile(r"^\.\. +([\w:-]+)::\s*(.*)$")
CREDIT = re.compile(r"\s*\((?:Contributed|Suggested|Fixed|Added|Implemented|Proposed|Reported|Patch|PEP)[^()]* (?:by|in) "
                    r"[^()]*\)")
INLINE = re.compile(r":(?P<role>[\w:+-]+):`(?P<of>[^`]+)`|``(?P<code>.+?)``(?!`)|`(?P<link>[^`]+)`_{0,2}"
                    r"|\|(?P<name>[\w -]+)\|_?"
                    r"|(?<![\w*])\*\*(?P<strong>[^\s*][^*]*)\*\*|(?<![\w*])\*(?P<em>[^\s*][^*]*)\*(?!\w)", re.DOTALL)


def rst_blocks(text):
    """Yield the paragraphs, `## headings` and fenced code of a reStructuredText document, in order."""
    yield from blocks(text.expandtabs(8).splitlines())


def blocks(lines):
    """Yield the blocks of `lines`, which start at their smallest indentation."""
    lines = dedent(lines)
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
            continue
        end = block_end(lines, at + 1)
        if line.startswith(".. ") or line.rstrip() == "..":
            yield from explicit(line, lines[at + 1:end])
        elif TABLE.match(line):
            end = at + 1
            while end < len(lines) and (lines[end].strip() or not TABLE.match(lines[end - 1])):
                end += 1
        elif UNDERLINE.match(line):
            end = at + 1
        elif at + 1 < len(lines) and UNDERLINE.match(lines[at + 1]):
            yield f"## {inline(line)}"
            end = at + 2
        elif line.startswith(">>> "):
            end = paragraph_end(lines, at)
            yield fence(lines[at:end])
        elif bullet := BULLET.match(line):
            width = bullet.end()
            item = list(blocks([" " * width + line[width:], *lines[at + 1:end]]))
            yield from prefixed("- ", item)
        elif line.startswith(" "):
            yield from blocks(lines[at:end])
        else:
            yield from paragraph(lines, at, end := paragraph_end(lines, at, same_indent=True))
            if lines[end - 1].rstrip().endswith("::"):  # what is indented after a double colon is literal
                start, end = end, block_end(lines, end)
                yield from literal(lines[start:end])
        at = end


def block_end(lines, start):
    """The index of the first line from `start` on that is neither empty nor indented."""
    return next((at for at in range(start, len(lines)) if lines[at].strip() and not lines[at].startswith(" ")), len(lines))


def paragraph(lines, start, end):
    """Yield the text of a paragraph on one line, if it has words."""
    text = inline(" ".join(line.strip() for line in lines[start:end]))
    text = re.sub(r"\s*::$", ":", text)
    if re.search(r"[A-Za-z]{2}", text) and not re.match(r"^:[\w -]+:", text):
        yield text


def paragraph_end(lines, start, same_indent=False):
    """The index after the last line of the paragraph that starts at `start`."""
    end = start + 1
    while end < len(lines) and lines[end].strip() and not (same_indent and lines[end].startswith(" ")):
        end += 1
    return end


def explicit(line, body):
    """Yield what is worth reading of a directive; comments, link targets, footnotes and definitions give nothing."""
    directive = DIRECTIVE.match(line)
    if not directive or directive[1] in DROPPED:
        return
    name, argument = directive[1], directive[2].strip()
    if name in CODE:
        yield from literal(without_options(body))
        return
    if name in VERSIONS:
        version, _, rest = argument.partition(" ")
        inner = list(blocks([rest, *dedent(body)]))
        yield from prefixed(f"{VERSIONS[name]} {version}: ", inner) if inner else [f"{VERSIONS[name]} {version}."]
    elif name in LEADS:
        yield from prefixed(LEADS[name], list(blocks([argument, *dedent(without_options(body))])))
    else:
        signatures = [argument]
        body = without_options(body)
        while body and body[0].strip() and argument:  # more signatures, until the first blank line
            signatures.append(body.pop(0).strip())
        signatures = [signature for signature in signatures if not OPTION.match(signature)]
        if argument:
            yield "\n".join(f"`{signature.rstrip(chr(92))}`" for signature in signatures)
        yield from blocks(body)


def without_options(body):
    """`body` without the `:option: value` lines at its top."""
    body = list(body)
    while body and OPTION.match(body[0]):
        body.pop(0)
    return body


def prefixed(lead, inner):
    """`inner` with `lead` before its first block, unless that is code."""
    if inner and not inner[0].startswith("```"):
        return [lead + inner[0], *inner[1:]]
    return inner


def literal(lines):
    """Yield a fenced code block, when there is code of a readable length."""
    code = dedent(lines)
    while code and not code[-1].strip():
        code.pop()
    while code and not code[0].strip():
        code.pop(0)
    if 0 < len(code) <= 40:
        yield fence(code)


def fence(code):
    """Lines of code as one fenced block."""
    return "```\n" + "\n".join(line.rstrip() for line in code) + "\n```"


def dedent(lines):
    """`lines` without their common indentation."""
    margin = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    return [line[margin:] for line in lines]


def inline(text):
    """`text` without inline markup: roles, links and emphasis give their words, code stays in single backticks."""
    text = INLINE.sub(plain, re.sub(r" ?\[#?\w*\]_", "", text.strip()))  # footnote marks go
    text = CREDIT.sub("", text)
    text = re.sub(r"\\(.)", lambda match: match[1].strip(), text)
    return " ".join(text.replace(" --- ", " - ").replace(" -- ", " - ").split())


def plain(match):
    """The words of one piece of inline markup."""
    if (role := match["role"]) is not None:
        words = re.sub(r"\s*<[^<>]*>$", "", match["of"]).lstrip("!")
        if words.startswith("~"):
            words = words.rsplit(".", 1)[-1].lstrip("~")
        kind = role.rsplit(":", 1)[-1]
        if kind in CODE_ROLES:
            return f"`{words}`"
        if kind in ("pep", "rfc"):
            return f"{kind.upper()} {words}"
        if kind == "issue":
            return f"issue {words}"
        return words.replace("-", " ") if kind == "ref" and words == match["of"] else words
    if match["code"] is not None:
        return f"`{match['code']}`"
    if match["link"] is not None:
        return re.sub(r"\s*<[^<>]*>$", "", match["link"])
    return match["name"] or match["strong"] or match["em"]
