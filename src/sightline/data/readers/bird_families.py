"""Family and order of the 200 birds of CUB-200-2011, which the data set itself does not give.

After the checklist of the American Ornithological Society. The table released with HAPPIER has one family more: it puts the
red-legged kittiwake, a gull, next to the kingfishers.
"""

FAMILIES = {
    "Alaudidae": ("Passeriformes", "Horned_Lark"),
    "Alcedinidae": (
        "Coraciiformes",
        "Belted_Kingfisher Green_Kingfisher Pied_Kingfisher Ringed_Kingfisher White_breasted_Kingfisher",
    ),
    "Alcidae": (
        "Charadriiformes",
        "Crested_Auklet Least_Auklet Parakeet_Auklet Rhinoceros_Auklet Pigeon_Guillemot Horned_Puffin",
    ),
    "Anatidae": ("Anseriformes", "Gadwall Mallard Hooded_Merganser Red_breasted_Merganser"),
    "Bombycillidae": ("Passeriformes", "Bohemian_Waxwing Cedar_Waxwing"),
    "Caprimulgidae": ("Caprimulgiformes", "Chuck_will_Widow Nighthawk Whip_poor_Will"),
    "Cardinalidae": (
        "Passeriformes",
        "Indigo_Bunting Lazuli_Bunting Painted_Bunting Cardinal Blue_Grosbeak Rose_breasted_Grosbeak Scarlet_Tanager "
        "Summer_Tanager",
    ),
    "Certhiidae": ("Passeriformes", "Brown_Creeper"),
    "Corvidae": (
        "Passeriformes",
        "American_Crow Fish_Crow Blue_Jay Florida_Jay Green_Jay Clark_Nutcracker Common_Raven White_necked_Raven",
    ),
    "Cuculidae": (
        "Cuculiformes",
        "Groove_billed_Ani Black_billed_Cuckoo Mangrove_Cuckoo Yellow_billed_Cuckoo Geococcyx",
    ),
    "Diomedeidae": ("Procellariiformes", "Black_footed_Albatross Laysan_Albatross Sooty_Albatross"),
    "Fregatidae": ("Suliformes", "Frigatebird"),
    "Fringillidae": (
        "Passeriformes",
        "Gray_crowned_Rosy_Finch Purple_Finch American_Goldfinch European_Goldfinch Evening_Grosbeak Pine_Grosbeak",
    ),
    "Gaviidae": ("Gaviiformes", "Pacific_Loon"),
    "Hirundinidae": ("Passeriformes", "Bank_Swallow Barn_Swallow Cliff_Swallow Tree_Swallow"),
    "Icteridae": (
        "Passeriformes",
        "Brewer_Blackbird Red_winged_Blackbird Rusty_Blackbird Yellow_headed_Blackbird Bobolink Bronzed_Cowbird "
        "Shiny_Cowbird Boat_tailed_Grackle Western_Meadowlark Baltimore_Oriole Hooded_Oriole Orchard_Oriole Scott_Oriole",
    ),
    "Icteriidae": ("Passeriformes", "Yellow_breasted_Chat"),
    "Laniidae": ("Passeriformes", "Loggerhead_Shrike Great_Grey_Shrike"),
    "Laridae": (
        "Charadriiformes",
        "California_Gull Glaucous_winged_Gull Heermann_Gull Herring_Gull Ivory_Gull Ring_billed_Gull Slaty_backed_Gull "
        "Western_Gull Red_legged_Kittiwake Artic_Tern Black_Tern Caspian_Tern Common_Tern Elegant_Tern Forsters_Tern "
        "Least_Tern",
    ),
    "Mimidae": ("Passeriformes", "Gray_Catbird Mockingbird Brown_Thrasher Sage_Thrasher"),
    "Motacillidae": ("Passeriformes", "American_Pipit"),
    "Parulidae": (
        "Passeriformes",
        "Ovenbird American_Redstart Bay_breasted_Warbler Black_and_white_Warbler Black_throated_Blue_Warbler "
        "Blue_winged_Warbler Canada_Warbler Cape_May_Warbler Cerulean_Warbler Chestnut_sided_Warbler Golden_winged_Warbler "
        "Hooded_Warbler Kentucky_Warbler Magnolia_Warbler Mourning_Warbler Myrtle_Warbler Nashville_Warbler "
        "Orange_crowned_Warbler Palm_Warbler Pine_Warbler Prairie_Warbler Prothonotary_Warbler Swainson_Warbler "
        "Tennessee_Warbler Wilson_Warbler Worm_eating_Warbler Yellow_Warbler Northern_Waterthrush Louisiana_Waterthrush "
        "Common_Yellowthroat",
    ),
    "Passerellidae": (
        "Passeriformes",
        "Eastern_Towhee Dark_eyed_Junco Baird_Sparrow Black_throated_Sparrow Brewer_Sparrow Chipping_Sparrow "
        "Clay_colored_Sparrow Field_Sparrow Fox_Sparrow Grasshopper_Sparrow Harris_Sparrow Henslow_Sparrow "
        "Le_Conte_Sparrow Lincoln_Sparrow Nelson_Sharp_tailed_Sparrow Savannah_Sparrow Seaside_Sparrow Song_Sparrow "
        "Tree_Sparrow Vesper_Sparrow White_crowned_Sparrow White_throated_Sparrow Green_tailed_Towhee",
    ),
    "Passeridae": ("Passeriformes", "House_Sparrow"),
    "Pelecanidae": ("Pelecaniformes", "Brown_Pelican White_Pelican"),
    "Phalacrocoracidae": ("Suliformes", "Brandt_Cormorant Red_faced_Cormorant Pelagic_Cormorant"),
    "Picidae": (
        "Piciformes",
        "Northern_Flicker American_Three_toed_Woodpecker Pileated_Woodpecker Red_bellied_Woodpecker "
        "Red_cockaded_Woodpecker Red_headed_Woodpecker Downy_Woodpecker",
    ),
    "Podicipedidae": ("Podicipediformes", "Eared_Grebe Horned_Grebe Pied_billed_Grebe Western_Grebe"),
    "Procellariidae": ("Procellariiformes", "Northern_Fulmar"),
    "Ptilonorhynchidae": ("Passeriformes", "Spotted_Catbird"),
    "Sittidae": ("Passeriformes", "White_breasted_Nuthatch"),
    "Stercorariidae": ("Charadriiformes", "Long_tailed_Jaeger Pomarine_Jaeger"),
    "Sturnidae": ("Passeriformes", "Cape_Glossy_Starling"),
    "Trochilidae": ("Apodiformes", "Anna_Hummingbird Ruby_throated_Hummingbird Rufous_Hummingbird Green_Violetear"),
    "Troglodytidae": (
        "Passeriformes",
        "Bewick_Wren Cactus_Wren Carolina_Wren House_Wren Marsh_Wren Rock_Wren Winter_Wren",
    ),
    "Tyrannidae": (
        "Passeriformes",
        "Acadian_Flycatcher Great_Crested_Flycatcher Least_Flycatcher Olive_sided_Flycatcher Scissor_tailed_Flycatcher "
        "Vermilion_Flycatcher Yellow_bellied_Flycatcher Tropical_Kingbird Gray_Kingbird Western_Wood_Pewee Sayornis",
    ),
    "Vireonidae": (
        "Passeriformes",
        "Black_capped_Vireo Blue_headed_Vireo Philadelphia_Vireo Red_eyed_Vireo Warbling_Vireo White_eyed_Vireo "
        "Yellow_throated_Vireo",
    ),
}
