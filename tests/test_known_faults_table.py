"""Which tests stand for which row of the list of known faults, and that all of them exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: The list itself, where it lies beside the repository.
LIST = next((file for folder in ROOT.parents if (file := folder / "shared" / "known_faults.md").is_file()), None)

RUN, CHECKPOINT, STACK = "training/test_run.py", "training/test_checkpoint.py", "quantizers/test_stack.py"
VQ, INITIALIZE, USAGE = "quantizers/test_vq.py", "quantizers/test_initialize.py", "metrics/test_usage.py"
HERE = "test_known_faults.py"

#: The input of a row -> the tests that show the right behaviour.
FAULTS: dict[str, tuple[str, ...]] = {
    # numbers
    "all tokens = code 0, entropy and perplexity under fp16/bf16 autocast": (
        f"{HERE}::test_all_tokens_on_one_code_under_autocast_have_perplexity_exactly_one",
        f"{USAGE}::test_one_code_under_autocast_has_perplexity_exactly_one",
    ),
    "4 residual levels, constant input, 20 steps (residual is 0 from level 2 on)": (f"{STACK}::test_constant_input_through_four_levels",),
    "z = 300 * ones, fp16": (f"{STACK}::test_large_values_in_float16", "test_fused.py::test_nearest_in_float16_does_not_overflow"),
    "one NaN or inf pixel in one training batch": (
        f"{RUN}::test_bad_pixel_stops_the_training",
        "test_tokenizer.py::test_one_nan_pixel_in_a_training_batch_is_named_and_changes_nothing",
    ),
    "N=4096 K=1024 d=16 T=.02, everything shifted by 100": ("test_fused.py::test_large_shifted_problem_keeps_v_positive_and_exact",),
    "z = -p (rotation-type gradients)": (f"{HERE}::test_a_token_opposite_to_its_code_has_a_finite_gradient",),
    "T = 1e-6 / 1e6 / 0 / negative": (
        "test_assignment.py::test_cold_limit_is_the_nearest_prototype",
        "test_assignment.py::test_hot_limit_is_the_mean_prototype_and_the_variance_of_the_codebook",
        "test_assignment.py::test_refused_temperatures",
    ),
    "200 steps, watch the norm of z": (f"{STACK}::test_two_hundred_steps_keep_the_latents_bounded",),
    # codebook
    "data-dependent initialisation with 8 tokens and 64 codes; 1 token; 0 tokens": (
        f"{INITIALIZE}::test_rows_are_distinct_finite_and_near_the_tokens",
        f"{INITIALIZE}::test_no_tokens_are_refused",
        f"{STACK}::test_a_training_batch_without_tokens_is_refused",
    ),
    "k-means initialisation, then two EMA steps on the same 4 tight blobs, K=4": (f"{VQ}::test_kmeans_of_tight_blobs_stays_where_it_is",),
    "revival threshold 2 with 64 tokens, 256 codes": (
        f"{VQ}::test_revival_does_not_replace_codes_in_normal_use",
        f"{VQ}::test_refused_settings",
    ),
    "revival with 3 live samples and 10 dead codes": (f"{VQ}::test_few_live_tokens_many_dead_codes",),
    "`eval()` on a fresh and on a trained quantizer, same batch twice": (f"{STACK}::test_eval_changes_no_state",),
    "gradient accumulation over 4 micro-batches, EMA on": (
        f"{VQ}::test_accumulation_over_micro_batches_equals_one_batch_of_their_sum",
        f"{RUN}::test_accumulation_equals_one_batch_of_the_sum",
    ),
    "commitment_weight = 0, backward of the quantizer loss alone": (f"{VQ}::test_no_commitment_no_encoder_gradient",),
    "optimizer groups": ("training/test_module.py::test_parameter_groups",),
    "frozen codebook, one step": ("quantizers/test_base.py::test_frozen_codebook_keeps_its_bytes_while_the_encoder_learns",),
    "batch [0,0,0,1]": (f"{VQ}::test_batch_counts", f"{USAGE}::test_counts_of_a_small_batch"),
    "usage falling to a few codes during a run": ("training/test_callbacks.py::test_warns_of_a_falling_usage",),
    # shapes and inputs
    "dim 32 with codebook_dim 8; dim = 1; every quantizer; map and sequence": (f"{STACK}::test_shapes",),
    "map of (2,8,5,7), several levels": (f"{STACK}::test_shapes",),
    "(2,8,8,8): height = channels": (f"{STACK}::test_the_declared_layout_is_used_even_when_sides_equal_channels",),
    "batch of 1, single image without batch axis": (
        "test_tokenizer.py::test_one_image_without_a_batch_axis",
        f"{RUN}::test_batches_of_one_image",
    ),
    "indices -1 or K": (
        f"{STACK}::test_ids_out_of_range_are_refused",
        "test_tokenizer.py::test_refused_ids",
        f"{USAGE}::test_index_out_of_range_is_refused_and_leaves_no_trace",
    ),
    "ViT built for 32x32 given 28x36, 30x33, 31x31, 1x1": (f"{HERE}::test_sizes_that_a_backbone_was_not_built_for",),
    "33x47 through the convolutional path": (
        "test_tokenizer.py::test_images_of_any_size_come_back_in_their_size",
        f"{HERE}::test_sizes_that_a_backbone_was_not_built_for",
    ),
    "timm ViT with a class token, swin, convnext": (
        "backbones/test_timm_encoder.py::test_grid_gradients_and_sizes",
        "backbones/test_timm_encoder.py::test_the_grid_has_the_orientation_of_the_image",
    ),
    "(2,1,32,32) grey, (2,4,32,32) RGBA, 16-bit, palette, CMYK files": (
        "test_images.py::test_refused",
        "data/test_read.py::test_other_pixels_become_rgb",
        "data/test_read.py::test_sixteen_bit_grey_goes_to_the_nearest_of_256_levels",
        "data/test_read.py::test_transparent_images_lie_on_white",
        "data/test_read.py::test_a_transparent_palette_entry_lies_on_white",
        "data/test_read.py::test_cmyk",
    ),
    "uint8 0..255, floats in [0,1], floats in [-1,1]": (
        "test_images.py::test_uint8_is_divided_by_255",
        "test_images.py::test_floats_keep_their_values",
        "test_images.py::test_refused",
        "test_tokenizer.py::test_uint8_equals_floats_over_255",
        f"{HERE}::test_images_of_other_integer_types_are_refused_by_name",
    ),
    "channels_last, strided, expanded tensors": (
        "test_tokenizer.py::test_memory_layouts",
        f"{STACK}::test_memory_layouts",
        "test_images.py::test_memory_layouts",
    ),
    # metrics
    "K=131072, only code 5 used, fresh metric": (f"{USAGE}::test_fresh_metric_has_no_code_used_in_advance",),
    "T very large": (f"{USAGE}::test_soft_use_is_another_figure_than_argmax_use",),
    "2 images with noise .01 and .2": ("metrics/test_reconstruction.py::test_per_image_and_pooled_psnr_are_two_figures",),
    "sanity-check batches before the first epoch; two epochs with other data; a short last batch": (
        f"{HERE}::test_sanity_batches_before_the_first_epoch_leave_no_trace",
        f"{USAGE}::test_reset_between_epochs",
        f"{USAGE}::test_short_last_batch_and_batch_size_do_not_matter",
        "metrics/test_reconstruction.py::test_reset_between_epochs",
        "test_evaluation.py::test_second_pass_starts_from_nothing",
    ),
    "FID with n=1; with [0,1] floats; batch 1 or 8": (
        "metrics/test_frechet.py::test_one_image_is_a_clear_error",
        "metrics/test_frechet.py::test_value_and_independence_of_the_batch_size",
        "metrics/test_features.py::test_bytes_floats_and_values_out_of_range_reach_the_network_as_the_same_pixels",
    ),
    "real and fake images through different resizes": (
        f"{HERE}::test_real_and_generated_images_pass_the_same_function",
        "metrics/test_frechet.py::test_equal_sets_and_a_pure_shift",
    ),
    # checkpoints, configuration, seeds
    "stop at step 5 and resume to 10, against 10 in one go (CPU)": (
        f"{RUN}::test_resume_in_the_middle_of_an_epoch",
        f"{RUN}::test_resume_after_an_epoch",
    ),
    "checkpoint with K=512 into a model with K=1024; truncated file; file of other software": (
        f"{RUN}::test_resume_with_another_codebook_size",
        f"{CHECKPOINT}::test_damaged_checkpoint",
        "test_tokenizer.py::test_weights_that_do_not_fit",
        "test_storage.py::test_damaged_weights",
    ),
    "a released checkpoint loaded with `torch.load(weights_only=True)` or safetensors": (
        f"{HERE}::test_a_released_tokenizer_is_tensors_and_plain_types_and_works",
        f"{CHECKPOINT}::test_checkpoint_holds_plain_types_only",
    ),
    "yaml says lr 1, command line lr 2; unknown key; contradictory keys": (
        "cli/test_train.py::test_command_line_wins_over_the_file",
        "cli/test_train.py::test_saved_configuration_repeats_the_run",
        "cli/test_train.py::test_refused_in_one_line_and_nothing_is_created",
    ),
    "disk full or kill -9 while a checkpoint is written": (
        f"{CHECKPOINT}::test_full_disk",
        f"{CHECKPOINT}::test_killed_while_writing",
        f"{CHECKPOINT}::test_training_whose_checkpoint_fails_can_go_on_from_the_one_before",
    ),
    "10 images with ids, one epoch": (
        "data/test_loader.py::test_each_image_once_an_epoch_over_all_ranks",
        "data/test_loader.py::test_batches_have_the_images_that_belong_to_the_labels",
    ),
    # scale
    "2 gloo processes with different batch sizes, 3 steps; one rank without live tokens": (
        "quantizers/test_distributed.py::test_all_state_is_byte_equal_on_both_ranks",
        "quantizers/test_distributed.py::test_counts_are_summed_over_the_ranks",
        "metrics/test_distributed.py::test_two_processes_agree_with_one",
    ),
    "`torch.compile(fullgraph=True)` in eval; 3 training steps against eager": (
        f"{HERE}::test_a_soft_or_hard_pass_in_eval_is_one_graph",
        f"{HERE}::test_three_compiled_training_steps_equal_eager_ones",
        "test_tokenizer.py::test_encoding_is_one_graph",
    ),
    "`torch.export` of encode": ("test_tokenizer.py::test_encoding_can_be_exported",),
    "50 steps": (f"{STACK}::test_memory_stays_flat",),
    "N=4096 K=16384 d=16 forward + backward": ("test_fused.py::test_memory_of_a_large_codebook",),
    "residual stack asked for fewer levels than it has": (
        f"{STACK}::test_fewer_levels",
        "test_tokenizer.py::test_fewer_levels",
        f"{HERE}::test_the_first_levels_mean_the_same_in_training_and_by_ids",
    ),
}


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the test functions in a file below tests/."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", FAULTS)
def test_the_tests_of_a_row_exist(row: str) -> None:
    assert FAULTS[row]
    for test in FAULTS[row]:
        file, name = test.split("::")
        assert name.startswith("test_")
        assert name in functions(file), test


@pytest.mark.skipif(LIST is None, reason="the list of known faults does not lie beside this repository")
def test_every_row_of_the_list_has_its_tests() -> None:
    assert LIST is not None
    cells = [line.split("|")[1].strip() for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    rows = [cell for cell in cells if cell != "input" and set(cell) != {"-"}]
    assert len(rows) == len(set(rows)) > 40
    assert set(rows) == FAULTS.keys()
