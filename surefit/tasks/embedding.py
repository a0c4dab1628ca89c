"""Task `embedding`: vectors of texts, learned from pairs, triplets and scored pairs."""

from __future__ import annotations

from surefit.data.column_types import is_number, is_text
from surefit.data.roles import Role
from surefit.targets import embeddings
from surefit.targets.task_spec import Figures, Head, Reads, TaskSpec

NAMES = {
    "anchor": (
        *("anchor", "query", "question", "sentence1", "text1", "premise", "question1", "source"),
        *("prompt", "title", "text"),
    ),
    "positive": (
        *("positive", "pos", "answer", "passage", "document", "context", "sentence2", "text2"),
        *("hypothesis", "entailment", "question2", "target", "completion", "response", "body"),
    ),
    "negative": ("negative", "neg", "hard_negative", "contradiction"),
}
SCORES = ("score", "similarity", "similarity_score", "relatedness", "rating", "label", "labels")

SPEC = TaskSpec(
    name="embedding",
    summary="vectors of texts: pairs that belong together, with a negative or a score",
    needs=(
        ("anchor", "positive", "negative"),
        ("anchor", "positive", "score"),
        ("anchor", "positive"),
    ),
    targets=("positive", "negative", "score"),
    roles=(
        *(Role(name, names, lambda kind, named: is_text(kind)) for name, names in NAMES.items()),
        Role("score", SCORES, lambda kind, named: is_number(kind)),
    ),
    reads=Reads(by_name=True, exact_targets=False, check_rows=embeddings.check_shared),
    fields=embeddings.fields_of,
    fit=embeddings.fit_scores,
    encode=embeddings.encode_texts,
    loss=embeddings.sequence_loss,
    count_targets=lambda columns: 1,
    decode=embeddings.decode,
    head=Head(auto_class="AutoModel", output="last_hidden_state"),
    figures=Figures(
        loss_by=embeddings.embedding_loss,
        from_start=True,
        predicted_values=embeddings.compared,
        own_metrics=embeddings.METRICS,
        better=dict.fromkeys(embeddings.METRICS, "higher"),
    ),
)
