"""The tools of `everything_server.py` that answer a call with questions: `input_required`."""

from mcp.server.mcpserver import Context
from mcp_types import ClientCapabilities, InputRequiredResult

from outlast.tests.conformance.asking import ask, form, roots, sample

STRING = {"type": "string"}

Asking = str | InputRequiredResult


async def test_input_required_result_elicitation(ctx: Context) -> Asking:
    """Asks for a name and greets it."""
    answers = await ask(ctx, {"user_name": form("What is your name?", {"name": STRING})})
    if isinstance(answers, InputRequiredResult):
        return answers
    return f"Hello, {(answers['user_name'].content or {}).get('name')}!"


async def test_input_required_result_sampling(ctx: Context) -> Asking:
    """Asks the client's model a question of geography."""
    answers = await ask(ctx, {"capital_question": sample("What is the capital of France?")})
    if isinstance(answers, InputRequiredResult):
        return answers
    return answers["capital_question"].content.text


async def test_input_required_result_list_roots(ctx: Context) -> Asking:
    """Asks for the client's roots and names them."""
    answers = await ask(ctx, {"client_roots": roots()})
    if isinstance(answers, InputRequiredResult):
        return answers
    return ", ".join(str(root.uri) for root in answers["client_roots"].roots)


async def test_input_required_result_request_state(ctx: Context) -> Asking:
    """Counts an answer only when its state came along."""
    question = form("Please confirm", {"ok": {"type": "boolean"}})
    answers = await ask(ctx, {"confirm": question}, state="asked to confirm")
    return answers if isinstance(answers, InputRequiredResult) else "state-ok"


async def test_input_required_result_tampered_state(ctx: Context) -> Asking:
    """Has a state that nobody else can make: the SDK seals it."""
    question = form("Please confirm", {"ok": {"type": "boolean"}})
    answers = await ask(ctx, {"confirm": question}, state="sealed")
    return answers if isinstance(answers, InputRequiredResult) else "untouched"


async def test_input_required_result_multiple_inputs(ctx: Context) -> Asking:
    """Asks the user, the model and the client at once."""
    questions = {
        "user_name": form("What is your name?", {"name": STRING}),
        "greeting": sample("Generate a greeting", max_tokens=50),
        "client_roots": roots(),
    }
    answers = await ask(ctx, questions, state="asked three")
    return answers if isinstance(answers, InputRequiredResult) else "All three have answered"


async def test_input_required_result_multi_round(ctx: Context) -> Asking:
    """Asks, and then asks again."""
    if ctx.request_state != "step 2":
        first = form("Step 1: What is your name?", {"name": STRING})
        answers = await ask(ctx, {"step1": first}, state="step 1")
        if isinstance(answers, InputRequiredResult):
            return answers
    second = form("Step 2: What is your favorite color?", {"color": STRING})
    answers = await ask(ctx, {"step2": second}, state="step 2")
    return answers if isinstance(answers, InputRequiredResult) else "Both rounds are done"


async def test_input_required_result_capabilities(ctx: Context) -> Asking:
    """Asks only in the ways that the client said it knows."""
    able = ctx.client_capabilities or ClientCapabilities()
    known = {
        "user": (able.elicitation, form("Go on?", {"ok": {"type": "boolean"}})),
        "model": (able.sampling, sample("Go on?")),
        "roots": (able.roots, roots()),
    }
    questions = {key: question for key, (can, question) in known.items() if can is not None}
    answers = await ask(ctx, questions)
    return answers if isinstance(answers, InputRequiredResult) else "Enough was answered"


TOOLS = (
    test_input_required_result_elicitation,
    test_input_required_result_sampling,
    test_input_required_result_list_roots,
    test_input_required_result_request_state,
    test_input_required_result_tampered_state,
    test_input_required_result_multiple_inputs,
    test_input_required_result_multi_round,
    test_input_required_result_capabilities,
)
