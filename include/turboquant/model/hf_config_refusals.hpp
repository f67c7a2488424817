#pragma once

#include <turboquant/model/hf_config_fields.hpp>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace turboquant::detail {

/// The fields that state how many layers there are.
inline std::initializer_list<std::string_view> layer_count_fields() {
  static const std::initializer_list<std::string_view> names{
      "num_hidden_layers", "num_transformer_layers", "n_layer", "n_layers", "num_layers"};
  return names;
}

/// The field that states how many layers there are, if one does.
inline std::string_view layer_count_field(const ConfigFields& fields) {
  return fields.first_present(layer_count_fields());
}

/// The first field of another layer count than a decoder's, or of one that reads a second sequence.
inline std::string_view two_tower_field(const ConfigFields& fields) {
  for (const std::string_view name : {"is_encoder_decoder", "add_cross_attention"}) {
    if (fields.boolean(name).value_or(false)) {
      return name;
    }
  }
  return fields.first_present({"decoder_layers", "num_decoder_layers", "decoder_attention_heads",
                               "decoder_ffn_dim", "num_encoder_layers", "encoder_layers", "d_kv"});
}

/// Classes with an encoder and a decoder, for files that state neither switch nor sizes.
inline bool is_two_tower_type(std::string_view type) {
  return is_among(type, {"bart",
                         "bigbird_pegasus",
                         "blenderbot",
                         "blenderbot-small",
                         "dia",
                         "encoder-decoder",
                         "florence2",
                         "fsmt",
                         "led",
                         "longt5",
                         "m2m_100",
                         "marian",
                         "mbart",
                         "moonshine",
                         "mt5",
                         "mvp",
                         "nllb-moe",
                         "pegasus",
                         "pegasus_x",
                         "pix2struct",
                         "plbart",
                         "prophetnet",
                         "seamless_m4t",
                         "seamless_m4t_v2",
                         "t5",
                         "t5gemma",
                         "speech_to_text",
                         "switch_transformers",
                         "t5gemma2",
                         "udop",
                         "umt5",
                         "vision-encoder-decoder",
                         "whisper",
                         "speecht5",
                         "speech-encoder-decoder"});
}

/// Classes whose attention sees both directions, and some of which attend causally where
/// `is_decoder` says so.
inline bool is_encoder_type(std::string_view type) {
  return is_among(type, {"albert",
                         "bert",
                         "big_bird",
                         "camembert",
                         "convbert",
                         "deberta",
                         "deberta-v2",
                         "data2vec-text",
                         "distilbert",
                         "electra",
                         "embedding_gemma2",
                         "embedding_gemma2_text",
                         "ernie",
                         "esm",
                         "esmc",
                         "eurobert",
                         "flaubert",
                         "fnet",
                         "funnel",
                         "gte",
                         "ibert",
                         "jina_embeddings_v3",
                         "layoutlm",
                         "longformer",
                         "luke",
                         "mobilebert",
                         "megatron-bert",
                         "modernbert",
                         "mpnet",
                         "mra",
                         "nomic_bert",
                         "nystromformer",
                         "openai_privacy_filter",
                         "rembert",
                         "roberta",
                         "reformer",
                         "roc_bert",
                         "roberta-prelayernorm",
                         "roformer",
                         "squeezebert",
                         "tapas",
                         "xlm",
                         "xlm-roberta",
                         "xmod",
                         "yoso",
                         "xlm-roberta-xl"});
}

/// The field which says that attention sees both directions, so that no cache of earlier tokens
/// exists.
inline std::string_view both_directions_field(const ConfigFields& fields) {
  if (!fields.boolean("is_causal").value_or(true)) {
    return "is_causal";
  }
  constexpr std::string_view name = "use_bidirectional_attention";
  const nlohmann::json* both = fields.find(name);
  return both != nullptr && (*both == true || *both == "all") ? name : std::string_view();
}

/// Fields which say that a layer keeps other caches than one, or none, whatever its type is.
inline std::string_view unread_cache_field(const ConfigFields& fields) {
  const std::string_view name =
      fields.first_present({"kv_reuse_every_i_layer", "kv_reuse_group", "loop_num"});
  return name == "loop_num" && fields.integer(name, 0, 1 << 20) == 1 ? std::string_view() : name;
}

/// An object whose layers are those of a language model that this reader does not know to be one.
inline void require_no_other_language_model(const ConfigFields& root) {
  for (const std::string& name : root.names()) {
    const nlohmann::json* value = root.find(name);
    const bool tower =
        value != nullptr && value->is_object() && name != "vision_config" && name != "audio_config";
    if (!tower) {
      continue;
    }
    const ConfigFields nested = *root.object(name);
    const bool named = nested.has("vocab_size") ||
                       is_among(name, {"decoder", "language_model", "language_model_config",
                                       "llm_cfg", "lm_config"});
    require(!named || layer_count_field(nested).empty(), ErrorCode::unsupported,
            "parse_model_config: ", nested.path(),
            " has layers of its own, expected the language model at the top or in text_config, "
            "llm_config or language_config");
  }
}

/// Only models that keep one cache of one sequence of tokens can be read.
/// @throws Error(unsupported) by the name of what says otherwise.
inline void require_one_cached_sequence(const ConfigFields& root, const ConfigFields& fields,
                                        std::string_view model_type) {
  const auto refuse_unless = [](bool condition, const ConfigFields& where, std::string_view what,
                                std::string_view reason) {
    require(condition, ErrorCode::unsupported, "parse_model_config: ", where.path(), " has ", what,
            ", ", reason);
  };
  constexpr std::string_view two_towers =
      "which models with an encoder and a decoder have: their cross attention is not planned";
  constexpr std::string_view no_cache =
      "whose attention sees both directions: it keeps no cache of earlier tokens";
  for (const ConfigFields* object : {&root, &fields}) {
    const std::string_view field = two_tower_field(*object);
    refuse_unless(field.empty(), *object, field, two_towers);
    const std::string type = object->string("model_type").value_or("");
    refuse_unless(!is_two_tower_type(type), *object, "model_type " + type, two_towers);
  }
  refuse_unless(!is_encoder_type(model_type) || fields.boolean("is_decoder").value_or(false),
                fields, "model_type " + std::string(model_type), no_cache);
  const std::string_view both = both_directions_field(fields);
  refuse_unless(both.empty(), fields, both, no_cache);
  const std::string_view unread = unread_cache_field(fields);
  refuse_unless(unread.empty(), fields, unread, "and what its layers keep is not known");
}

}  // namespace turboquant::detail
