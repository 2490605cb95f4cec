"""A corpus of plain English records in which known ones break known rules."""

import json
import random
from dataclasses import dataclass, field

COMMON = (
    "the of and to be that have with in a is was it for on are as by this from at or an they which you one had not but "
    "all were when we there can more if no out so said up what its about into than them only other new some could time "
    "these two may then do first any my now such like our over man me even most made after also did many before must "
    "through back years where much your way well down should because each just those people how too little state good "
    "very make world still own see men work long get here between both life being under never day same another know "
    "while last might us great old year off come since against go came right used take three house water small place "
    "found number part general high school during without again home around however large city against young family "
    "country river morning garden letter window village teacher market winter summer paper story music answer question"
)
EXTRA = (
    "bridge castle doctor engine farmer forest harbor island kitchen ladder meadow mirror needle ocean palace pencil "
    "planet pocket rabbit rocket saddle school shadow silver spider spring stable statue street sugar temple thunder "
    "ticket tiger timber tunnel turtle valley violin wagon walnut weapon whisper willow winter wizard writer yellow"
)


@dataclass
class Planted:
    """Records by number, and the rule that each planted one breaks."""

    records: list[dict] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    duplicates: dict[int, int] = field(default_factory=dict)  # number of a copy -> number of the first one
    evaluation: list[str] = field(default_factory=list)

    def add(self, text, rule=None, **fields):
        number = len(self.records)
        record = {"id": f"record-{number:05d}", "url": f"https://example.org/page/{number}", "year": 1990 + number % 30}
        self.records.append({**record, "text": text, **fields})
        if rule is not None:
            self.broken[number] = rule
        return number

    def lines(self):
        return "".join(json.dumps(record) + "\n" for record in self.records)


def sentence(words, some):
    chosen = [some.choice(words.split()) for _ in range(some.randint(9, 16))]
    return " ".join(chosen).capitalize() + "."


def clean(some, sentences=24):
    """Return a text that breaks no rule: whole sentences of common words, some to a line."""
    words = f"{COMMON} {COMMON} {EXTRA}"
    made = [sentence(words, some) for _ in range(sentences)]
    return "\n".join(" ".join(made[begin : begin + 4]) for begin in range(0, sentences, 4))


def near(text, some, changes=4):
    """Return ``text`` with some words exchanged, which leaves most of its 5-grams as they were."""
    words = text.split(" ")
    for place in some.sample(range(20, len(words) - 20, 40), min(changes, (len(words) - 40) // 40)):
        words[place] = some.choice(EXTRA.split())
    return " ".join(words)


def planted(clean_documents=400, seed=1):
    """Return the corpus: each rule broken in 5 records; 40 exact and 60 near copies, 10 leaks, 20 addresses."""
    some = random.Random(seed)
    corpus = Planted()
    corpus.evaluation = [clean(some, 4) for _ in range(10)]
    originals = [corpus.add(clean(some)) for _ in range(clean_documents)]
    for _ in range(5):
        corpus.add(clean(some), "validation.url.pattern", url="not an address")
        corpus.add(clean(some), "validation.year.min", year=1066)
        corpus.add(clean(some), "validation.year.type", year="unknown")
        corpus.add(clean(some), "validation.lang.one_of", lang="xx")
        corpus.records[corpus.add(clean(some), "validation.url.missing")].pop("url")
        corpus.add(f"{clean(some)} {'# ' * 80}end of page.", "gopher_quality.too_many_hashes")
        corpus.add("\n".join(["The same line of the page comes again and again to be read."] * 30), "gopher_repetition")
        corpus.add(clean(some).replace(". ", ". {x} "), "c4")
        long = clean(some, 60)
        corpus.add(long + "\n" + long.splitlines()[0], "fineweb")
        corpus.add(german(some), "language")
        corpus.add(f"{clean(some)} The key is AKIAIOSFODNN7EXAMPLE.", "secrets")
    for number in some.sample(originals, 40):
        copy = corpus.add(corpus.records[number]["text"].upper().lower().capitalize())
        corpus.duplicates[copy] = number
        corpus.broken[copy] = "dedup"
    for number in some.sample([each for each in originals if each not in corpus.duplicates.values()], 60):
        copy = corpus.add(near(corpus.records[number]["text"], some))
        corpus.duplicates[copy] = number
        corpus.broken[copy] = "dedup"
    for text in corpus.evaluation:
        corpus.add(f"{clean(some, 12)}\n{text}\n{clean(some, 12)}", "decontaminate")
    for number in range(20):
        corpus.add(f"{clean(some)} Write to person{number}@example.com for more of the story.", "pii")
    return corpus


GERMAN = (
    "der die das und ist nicht ein eine mit auf für von dem den des sich auch werden bei nach noch wird sind wie einer "
    "über einen nur haben aus wenn oder aber man dass kann durch gegen vom schon seit ihre diese mehr Haus Stadt Jahr"
)


def german(some):
    """Return German text with the shape of ``clean``."""
    made = [sentence(GERMAN, some) for _ in range(24)]
    return "\n".join(" ".join(made[begin : begin + 4]) for begin in range(0, 24, 4))
