"""The ablations of ``deberta ablate``: name of the row -> recipe and changed settings. Light to import.

The first row of each is the whole model, which makes the claim that it is better than the others. Numbers of tables
are those of the paper (2006.03654).
"""

Variants = dict[str, tuple[str, tuple[str, ...]]]

TINY: Variants = {"DeBERTa": ("tiny", ())}
NO_EMD = ("model.emd_steps=0",)

ABLATIONS: dict[str, Variants] = {
    "attention": TINY  # table 4
    | {
        "no EMD": ("tiny", NO_EMD),
        "no c2p": ("tiny", ("model.pos_att_type=p2c",)),
        "no p2c": ("tiny", ("model.pos_att_type=c2p",)),
        "no EMD, no c2p": ("tiny", (*NO_EMD, "model.pos_att_type=p2c")),
        "no EMD, no p2c": ("tiny", (*NO_EMD, "model.pos_att_type=c2p")),
        "with p2p": ("tiny", ("model.pos_att_type=c2p|p2c|p2p",)),
        "absolute positions only": ("tiny-absolute", ()),  # RoBERTa-ReImp
    },
    "positions": TINY  # section 3.2: where the absolute positions are used
    | {
        "none": ("tiny", NO_EMD),
        "input instead of EMD": ("tiny", (*NO_EMD, "model.position_biased_input=true")),
    },
    "layout": TINY  # table 13, the steps from v1 to v2, one by one
    | {
        "own position projections": ("tiny", ("model.share_att_key=false",)),
        "one row per distance": ("tiny", ("model.position_buckets=-1",)),
        "no LayerNorm of the rows": ("tiny", ("model.norm_rel_ebd=none",)),
        "with convolution": ("tiny", ("model.conv_kernel_size=3", "model.conv_act=gelu")),
    },
    "rtd": {  # section A.11 and DeBERTaV3, table 2
        "RTD, GDES": ("v3-tiny", ()),
        "RTD, NES": ("v3-tiny", ("rtd.sharing=nes",)),
        "RTD, ES": ("v3-tiny", ("rtd.sharing=es",)),
        "MLM": ("tiny", ()),
    },
    "masking": TINY  # the same rate, other units
    | {
        "whole words": ("tiny", ("masking.strategy=word",)),
        "spans": ("tiny", ("masking.strategy=span",)),
        "n-grams": ("tiny", ("masking.strategy=ngram",)),
        "15 %": ("tiny", ("masking.rate=0.15",)),
    },
    "sift": {  # section 4: fine-tuning with and without SiFT, and the weight of its loss; one pretrained model
        "SiFT, weight 5": ("tiny", ("finetune.sift=true", "finetune.sift_lambda=5.0")),
        "no SiFT": ("tiny", ()),
        "SiFT, weight 1": ("tiny", ("finetune.sift=true", "finetune.sift_lambda=1.0")),
        "SiFT, weight 10": ("tiny", ("finetune.sift=true", "finetune.sift_lambda=10.0")),
    },
    "length": {  # section A.5: pretrained at 512, fine-tuned at 768; here 64 and 96
        "fine-tuned at 96": ("tiny", ("finetune.max_length=96",)),
        "fine-tuned at 64": ("tiny", ("finetune.max_length=64",)),
    },
}

OF_FINETUNING = ("sift", "length")
"""Their rows are one pretrained model, fine-tuned in different ways."""
